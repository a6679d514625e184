"""Users' kernels on processors: Triton's first intermediate form becomes LLVM IR."""
