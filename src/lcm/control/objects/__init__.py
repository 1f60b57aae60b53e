"""The life of any document: read, list, watch, write, step, delete."""
