"""A worker of one vendor's queue: takes jobs, compiles, publishes."""
