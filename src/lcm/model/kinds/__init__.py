"""The resource kinds, their state machines, and the validation of documents."""
