"""Sliding windows: pooling, padding, unfolding, and their gradients."""
