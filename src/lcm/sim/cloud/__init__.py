"""A simulated cloud account behind the `Compute` protocol."""
