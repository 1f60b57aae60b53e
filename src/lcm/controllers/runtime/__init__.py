"""What every controller runs on: reconciling, election, settings."""
