"""Traces by the digest of a Dynamo graph: kept on disk, shared by way of the farm."""
