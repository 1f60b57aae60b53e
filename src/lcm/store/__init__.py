"""Versioned keys with watch and leases: one protocol (`base`), three engines (`memory`, `sqlite`, `etcd`)."""
