"""Benchmarks that compare speed with a peer in one run; no test imports them."""
