"""CML lab files: parsing, port tags, rewriting, node sizes."""
