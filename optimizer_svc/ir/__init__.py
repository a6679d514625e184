"""The optimizer's own data structures: loop nests, groups of nests, and what passes hand on."""
