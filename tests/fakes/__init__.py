"""Small models, stores and sweeps that tests run on."""
