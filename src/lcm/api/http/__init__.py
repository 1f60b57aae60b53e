"""Serving HTTP: the ASGI application, requests and answers, authentication, limits, routing and metrics."""
