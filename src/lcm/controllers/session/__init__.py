"""The lablet controller: takes sessions from their worker to their end."""
