"""The disk tier: what one process of this machine fetched, the next one finds."""
