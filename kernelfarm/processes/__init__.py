"""Child processes: starts, watches, restarts and stops them."""
