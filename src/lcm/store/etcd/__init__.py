"""The cluster engine: a store shared through etcd."""
