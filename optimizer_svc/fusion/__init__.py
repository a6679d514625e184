"""Which loop nests become one kernel: domains, their alignment, and the order of everything."""
