"""Lowers a materialized value to a loop nest with a straight-line body."""
