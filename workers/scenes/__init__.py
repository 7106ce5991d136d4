"""Procedural captioned scenes, which the built-in model draws: their captions and their images."""
