"""Domain types and pure functions: no I/O, no async, no clock reading.

Every other package imports this one; it imports none.
"""
