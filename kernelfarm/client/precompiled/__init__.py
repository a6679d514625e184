"""Graphs in the packages of PyTorch's own precompilation: `aot_compile`, caching precompilation.

PyTorch writes such a package: bytecode, guards and, for each graph, what the backend returns. For
kernelfarm this is the graph's trace with its program key, as plain bytes: no weights, no kernels.
A process that loads the package finds the program by its key, on disk or at the farm.
"""
