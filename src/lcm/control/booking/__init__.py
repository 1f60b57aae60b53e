"""Promises, placements and the calendar."""
