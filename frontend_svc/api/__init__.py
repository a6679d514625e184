"""The public services: messages in, messages out."""
