"""The HTTP server: application, requests, answers, authentication, limits, routing."""
