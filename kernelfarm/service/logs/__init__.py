"""Structured logs and their limits."""
