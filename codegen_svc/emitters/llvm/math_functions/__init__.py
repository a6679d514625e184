"""Elementary functions as LLVM functions."""
