"""The optimizer's room: Prims graph in, loop kernels and plan out."""
