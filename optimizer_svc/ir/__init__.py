"""The optimizer's own data structures: loop nests, groups of nests, and the results of passes."""
