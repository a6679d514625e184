"""Facts about the chips of the echo vendor."""
