"""CPU code: loop kernels to LLVM IR, assembly, an ELF object, and a shared library."""
