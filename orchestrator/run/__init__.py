"""Running a sweep: launch, driver, study (Optuna), pool (Ray), preflight checks and progress."""
