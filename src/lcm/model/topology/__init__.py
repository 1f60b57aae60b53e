"""Lab files: reading, checking, sizing and rewriting them."""
