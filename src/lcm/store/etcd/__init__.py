"""The cluster engine: etcd 3.4 or later."""
