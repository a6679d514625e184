"""Kernels that are bound by memory, beside a copy, eager and Inductor."""
