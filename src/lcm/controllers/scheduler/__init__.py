"""The scheduler: finds a place for each session and creates the sessions of reservations."""
