"""Operators that the client's framework runs, with the reasons."""
