"""Shared by all families: the operator table, arguments, shapes, types, the graph builder."""
