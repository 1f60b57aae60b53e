"""What machines cost and hold, and the licences they need."""
