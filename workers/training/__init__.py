"""Training code of the built-in model."""
