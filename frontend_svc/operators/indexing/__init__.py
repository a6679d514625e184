"""Elements that are read and written at indices that are data."""
