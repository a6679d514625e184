"""Loop kernels as LLVM IR, for CPUs."""
