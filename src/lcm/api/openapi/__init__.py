"""The OpenAPI document, its examples, and the page about the API."""
