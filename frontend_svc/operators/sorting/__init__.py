"""Sorted rows, and what searches or counts in order."""
