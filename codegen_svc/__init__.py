"""The code generation service: loop kernels in, artifacts out, one queue for each vendor."""
