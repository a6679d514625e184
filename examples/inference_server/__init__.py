"""An inference server: a transformers model behind HTTP that is compiled while it serves."""
