"""Reductions and scans over axes and segments, and what is made of them."""
