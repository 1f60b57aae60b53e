"""The kinds of documents, their state machines and rules, and the registry of all of them."""
