"""AMD: loop kernels to hsaco code objects through Triton's own AMD code generator."""
