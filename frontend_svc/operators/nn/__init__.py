"""Layers of neural networks: activations, normalizations, losses, embedding bags."""
