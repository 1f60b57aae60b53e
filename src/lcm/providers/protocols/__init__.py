"""The protocols of the outside world, as controllers see it."""
