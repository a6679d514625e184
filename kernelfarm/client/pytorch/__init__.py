"""What the client knows of PyTorch itself: element types, and cheap ways to make tensors."""
