"""A CML controller made up: one engine with a direct face and a REST face that the official client drives."""
