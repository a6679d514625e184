"""Traces modules, and captures what was traced as a graph for the farm."""
