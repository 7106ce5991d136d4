"""What a sweep's records say: fronts with their errors, choices, comparisons, queries."""
