"""Kernels in canonical form, from groups of nests."""
