"""Calls to the farm: channels, deadlines, retries, verification of responses, invalidations."""
