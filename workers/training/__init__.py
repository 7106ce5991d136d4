"""Training of targets, drafters and the metrics' nets; plain PyTorch."""

#: What `specfrontier train` makes, in the order of dependence.
COMPONENTS = ("tokenizer", "target", "eagle", "medusa", "independent", "features", "clip")
SCENES_ONLY = ("features", "clip")  # trained on procedural scenes, not on a user's images
