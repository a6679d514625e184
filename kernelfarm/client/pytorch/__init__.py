"""PyTorch for the client: element types, fast tensor creation, and PyTorch's private names."""
