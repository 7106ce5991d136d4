"""The tests of specfrontier."""
