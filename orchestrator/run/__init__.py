"""Running a sweep: the driver, trials and what they are built of, the search, racing, timing and
progress.
"""
