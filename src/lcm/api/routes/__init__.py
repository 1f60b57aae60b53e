"""Every route, one file a topic, and the table of all of them."""
