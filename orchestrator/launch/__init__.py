"""The stages of a launch: options, read, inspection, checks, start, launch; supervise runs the last
two.
"""
