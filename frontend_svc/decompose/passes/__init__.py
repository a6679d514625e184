"""Rewrites of Prims graphs, one per file; each takes a graph and gives a graph and notes."""
