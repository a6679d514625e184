"""kernelfarm's own operators in torch, for captured graphs: attention and layer normalization."""
