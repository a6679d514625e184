"""Generated protobuf and gRPC code; made by `make protos`, never edited."""
