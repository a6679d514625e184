"""Memory and order of a program's steps."""
