"""Loads binaries as kernels: one module for each kind of device; `contract` is their interface."""
