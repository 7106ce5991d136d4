"""MLflow: an append-only outbox and the process that copies it to the tracking server."""
