"""Tokens, sign-in, OIDC, audit and sealed secrets."""
