"""Cached traces by the digest of a Dynamo graph: on disk, and shared through the farm."""
