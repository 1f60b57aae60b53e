"""The one place that names implementations and puts processes together."""
