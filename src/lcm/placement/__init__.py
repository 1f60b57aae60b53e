"""Placement: where a session goes, and why. Pure: values in, values out."""
