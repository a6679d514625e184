"""The frontend's use of the cache: namespaces, look-ups, the memory tier, invalidations."""
