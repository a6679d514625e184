"""Kernels for 64-bit RISC-V processors with vectors; the TOML files state the facts of targets."""
