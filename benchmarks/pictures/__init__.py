"""The pictures of docs/how_it_works.md, each drawn from real runs of the built-in model."""
