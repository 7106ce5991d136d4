"""MLflow: a tracker that logs sweeps and trainings while they run, and MLflow's own server."""
