"""Commands that run something: up, serve, backup, restore, cml-sim."""
