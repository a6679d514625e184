"""From a group of nests to a kernel in canonical form."""
