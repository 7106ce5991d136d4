"""How the shipped weights were made: codec, target, drafters, and the metrics' networks. Not part
of the wheel.
"""

#: What `python -m recipes` trains, in the order of dependence.
COMPONENTS = (
    "tokenizer",
    "target",
    "eagle",
    "eagle3",
    "medusa",
    "independent",
    "vertical",
    "features",
    "clip",
)
SCENES_ONLY = ("features", "clip")  # trained on procedural scenes, not on a user's images
