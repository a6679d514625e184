"""Loop kernels as Triton source, for accelerators."""
