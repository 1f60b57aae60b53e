"""The lablet controller: takes each session from its assigned worker to its end."""
