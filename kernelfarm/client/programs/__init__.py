"""Programs by key, from memory, disk or farm; loaded once, replaced once they are invalid."""
