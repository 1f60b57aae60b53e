"""Measurements, alerts, idleness and observations as the store keeps them."""
