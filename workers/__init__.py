"""The PyTorch library: models, drafters, decoding, metrics, data and training (no ray, optuna or
mlflow).
"""
