"""The cache as the frontend uses it: namespaces, look-ups, the tier in memory, invalidations."""
