"""Talking to the farm: channels, deadlines, retries, checked answers, invalidations."""
