"""Events: derived, streamed to clients, delivered to sinks."""
