"""The disk tier: programs and traces that one process fetched, for later processes."""
