"""A whole farm on one machine: its processes, and how they start, restart and drain.

`layout` defines the processes of a farm, `supervisor` runs them from start to drain, and
`status_file` writes their state for tools. `kernelfarm.processes.child` runs one process.
"""
