"""What a sweep stores and what is computed from it: trials, fronts, comparisons, plots."""
