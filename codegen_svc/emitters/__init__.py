"""Loop kernels to source text."""
