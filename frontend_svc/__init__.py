"""The public gRPC API, and the story of one request."""
