"""Reductions and scans over axes and segments, and operators that are made of them."""
