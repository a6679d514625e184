"""The NumPy meaning of graphs, kernels and programs: the oracle of every test."""

from kernelfarm.ir.interpret.arrays import numpy_dtype
from kernelfarm.ir.interpret.kernels import run_kernel

__all__ = ["numpy_dtype", "run_kernel"]
