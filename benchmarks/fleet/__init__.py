"""A simulation of many inference servers that start at once, from measured service times."""
