"""The description of the API: OpenAPI document, examples, and the page in docs."""
