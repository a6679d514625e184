"""The intermediate representations (graphs, loop kernels, programs) and their integer algebra."""
