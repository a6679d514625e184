"""Finds programs by key (in memory, on disk, at the farm), loads them and replaces stale ones."""
