"""The public service of a farm: gRPC API, request flow, cache services, decomposition."""
