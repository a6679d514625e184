"""The optimizer's passes: one file each, pure functions."""
