"""The speed of edge and workers beside the bare toolchain, queue overhead, a worker's memory."""
