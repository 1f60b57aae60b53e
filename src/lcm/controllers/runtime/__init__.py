"""What every controller runs on: the reconcile loop with its work queue, leader election, current settings."""
