"""Training of drafters for a user's target; plain PyTorch."""

# The drafters that `specfrontier train` trains.
DRAFTERS = ("eagle", "eagle3", "medusa", "independent", "vertical")
