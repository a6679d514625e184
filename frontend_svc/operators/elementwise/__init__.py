"""Operators that compute each element from the operands' elements at the same index."""
