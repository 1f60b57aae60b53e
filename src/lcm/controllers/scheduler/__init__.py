"""The scheduler: sessions get their places, and reservations their sessions."""
