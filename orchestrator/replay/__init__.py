"""The `replay` sampler and `specfrontier predict`: settings predicted from a few recorded
images.
"""
