"""Random numbers, from the bits of one draw."""
