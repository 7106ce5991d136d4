"""Measured claims: each module prints a table that the docs quote."""
