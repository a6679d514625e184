"""PyTorch's operator database against the farm: `python -m tests.sweep run|report|retry`."""
