"""Commands on bookings: book, extend, cancel, explain, observe, artifacts, plan, record."""
