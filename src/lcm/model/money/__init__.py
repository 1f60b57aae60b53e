"""Costs, prices and licences."""
