"""What the rest of the code knows of the outside world: protocols and their values."""
