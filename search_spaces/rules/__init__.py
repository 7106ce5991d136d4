"""Neighbourhoods, schedules and modulations that are a file each; a new one registers itself where
its name is first used.
"""
