"""The gateway's speed: hits through gRPC beside a bare echo server, and invalidations."""
