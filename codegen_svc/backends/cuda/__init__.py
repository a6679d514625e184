"""NVIDIA: loop kernels to cubins through Triton and its wheel's ptxas."""
