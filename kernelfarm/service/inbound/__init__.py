"""Limits on what clients send and hold open: bytes, connections, unauthenticated calls."""
