"""Local rewrites of single prims; each rule is exact, bit by bit."""
