"""Callers and permissions, secrets, and the rules for webhooks."""
