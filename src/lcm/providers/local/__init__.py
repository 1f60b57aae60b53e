"""What needs no vendor: artifacts and files on disk, sealed secrets, outgoing posts."""
