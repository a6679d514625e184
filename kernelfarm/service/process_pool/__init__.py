"""Child processes for work whose cost clients control: a parent can end it at any moment.

A service holds one `pool.ProcessPool`; `pool.Work` is one job as bytes; a module of the service
maps the names of jobs to functions (`JOBS`). Threads cannot be ended, so nothing whose cost depends
on what a client sent runs in the service itself.

Nothing is imported here: the fork server (`fork_server`) must not import gRPC, which `pool` needs.
"""
