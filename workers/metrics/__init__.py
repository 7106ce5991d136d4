"""Distances between sets of images, and their uncertainty."""
