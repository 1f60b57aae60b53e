"""The worker controller: workers from their launch to their end."""
