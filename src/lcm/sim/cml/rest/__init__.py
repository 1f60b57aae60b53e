"""The simulated CML's REST API."""
