"""Sorting, searching in sorted rows, and histograms."""
