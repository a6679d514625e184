"""Elementary functions as LLVM functions of our own."""
