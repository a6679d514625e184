"""Operators of our own in torch, which captured graphs hold: attention and layer normalization."""
