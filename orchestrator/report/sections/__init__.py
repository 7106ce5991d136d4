"""The sections of the report, each with its script."""
