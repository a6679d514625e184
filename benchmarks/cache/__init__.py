"""The speed of gateways: hits by gRPC compared with a bare echo server, and invalidations."""
