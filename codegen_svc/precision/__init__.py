"""Where a kernel hides small errors of its arithmetic, which cheaper forms of functions make."""
