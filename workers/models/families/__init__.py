"""What differs between model families: sizes, conditioning, key names, grids."""
