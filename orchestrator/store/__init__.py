"""The files of a sweep: its identity, records and prices, its events and locks. Nothing here asks a
question.
"""
