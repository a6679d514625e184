"""A worker of one vendor's queue: it takes jobs, compiles them and publishes the results."""
