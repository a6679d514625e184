"""The optimizer service: a Prims graph in, loop kernels and a plan out."""
