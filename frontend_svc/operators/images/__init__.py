"""Images resized and sampled."""
