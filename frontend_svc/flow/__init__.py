"""What becomes of one request: admission, lease, calls of the other services, publication."""
