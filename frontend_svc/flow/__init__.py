"""The flow of one request: look-up, admission, lease, calls of other services, publication."""
