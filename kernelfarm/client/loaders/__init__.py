"""Binaries -> functions: one module for each kind of device, all behind `contract`."""
