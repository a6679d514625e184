"""Random numbers, computed from random bits and the position of each element."""
