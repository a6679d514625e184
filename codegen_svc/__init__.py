"""The code generators' room: loop kernels in, artifacts out, one queue for each vendor."""
