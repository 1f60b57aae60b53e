"""Commands about people and credentials: tokens, secrets, contexts."""
