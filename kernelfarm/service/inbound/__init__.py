"""What clients may send and hold open: bytes, connections, calls without credentials."""
