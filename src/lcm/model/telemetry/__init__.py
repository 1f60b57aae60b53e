"""What was measured and what it means: idleness, observations, learning, alerts."""
