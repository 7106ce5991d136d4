"""Fronts and states as people and other programs read them: pictures, tables, folders to take
away.
"""
