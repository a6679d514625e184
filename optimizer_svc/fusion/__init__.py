"""Fusion of loop nests into kernels: domains, their alignment, and the order of steps."""
