"""The public gRPC services: they translate messages and call the packages below."""
