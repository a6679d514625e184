"""Analyses of graphs and loop nests, which change nothing."""
