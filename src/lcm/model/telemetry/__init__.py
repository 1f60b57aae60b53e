"""Idleness, observations of running labs, what is learned from them, and alerts."""
