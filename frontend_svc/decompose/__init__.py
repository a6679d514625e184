"""Decomposition of captured ATen graphs to Prims."""
