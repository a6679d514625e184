"""Freezing: what depends on parameters and buffers alone is computed once, on the client."""
