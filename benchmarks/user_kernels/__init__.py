"""Users' Triton kernels, compiled by the farm, beside Triton's own JIT."""
