"""Versioned keys with watch and leases: one protocol (`store.base`), three engines (`memory`, `sqlite`, `etcd`)."""
