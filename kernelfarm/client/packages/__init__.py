"""Packages of whole models, which machines share through the farm: a new process traces nothing.

A package is what PyTorch's `aot_compile` stores of one call: bytecode, guards, and the trace of its
graph (`kernelfarm.client.precompiled`). It is found by what a process knows before it traces: the
code that would be traced, versions, options, and the types and metadata of modules and inputs.

A package has code. A client that opted in (`KERNELFARM_PACKAGES=trusted`) uses it only if a pinned
key for traces signed it, and verifies everything else before PyTorch unpickles one byte of it.
"""
