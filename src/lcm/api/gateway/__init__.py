"""The way to the consoles of sessions: who may open one, and the relay between a WebSocket and a worker's port."""
