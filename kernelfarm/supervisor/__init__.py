"""A whole farm on one machine: which processes it has, and how they start, restart and drain.

`layout` says which children make a farm, `child` keeps one process alive, `supervisor` tells the
story from start to drain, `status_file` writes it down for tools.
"""
