"""Tensors made, viewed, cut, joined and rearranged."""
