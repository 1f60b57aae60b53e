"""Nouns and arithmetic: no I/O, no async, no clock reading. Every other package imports this one; it imports none."""
