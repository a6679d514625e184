"""CPU kernels, beside eager and Inductor."""
