"""From an entry of models.yaml to models: checkpoint headers, models on the meta device, dry
runs.
"""
