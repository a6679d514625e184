"""The meaning of graphs, kernels and programs in NumPy, the oracle of the tests."""

from kernelfarm.ir.interpret.arrays import numpy_dtype
from kernelfarm.ir.interpret.graphs import ExternSite, RunExtern, run_graph
from kernelfarm.ir.interpret.kernels import run_kernel
from kernelfarm.ir.interpret.programs import run_program

__all__ = ["ExternSite", "RunExtern", "numpy_dtype", "run_graph", "run_kernel", "run_program"]
