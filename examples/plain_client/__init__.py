"""A client without torch: plain gRPC, NumPy and ctypes."""
