"""What keeps the store small and whole: archive, housekeeping, key rotation, installation."""
