"""Procedural captioned scenes, which the built-in model generates: their captions and their
images.
"""
