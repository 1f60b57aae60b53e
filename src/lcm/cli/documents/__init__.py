"""Commands on documents: get, describe, apply, delete, wait, story."""
