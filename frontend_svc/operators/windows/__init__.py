"""Windows slid over axes: pooling, padding, unfolding, and their gradients."""
