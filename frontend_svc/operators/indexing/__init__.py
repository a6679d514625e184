"""Elements read and written at indices that are data."""
