"""Rewrites of Prims graphs, one per file; each returns a graph and notes for the report."""
