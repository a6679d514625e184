"""Child processes for work whose cost clients control; the service can end them at any moment.

A service has one `pool.ProcessPool`. A `pool.WorkItem` is one job as bytes. A module of the service
maps the names of jobs to functions (`JOBS`). Threads cannot be ended, so work whose cost depends on
a client's request never runs in the service itself.

This file imports nothing, because the fork server (`fork_server`) must not import gRPC, as `pool`
does.
"""
