"""Notices: what people are told by mail about their bookings."""
