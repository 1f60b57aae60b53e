"""This machine behind the protocols: folders, files, sealed secrets, outgoing webhooks."""
