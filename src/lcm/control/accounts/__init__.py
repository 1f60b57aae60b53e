"""Licences, billing and allocations."""
