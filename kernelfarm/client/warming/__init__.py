"""Cache-warming batch jobs: the models of a manifest, captured here, compiled by a farm.

manifest, yaml_lines    what to warm; mistakes are reported with their lines
cases                   the combinations of sizes and element types of one model
models, capture_case    builds a model and captures its graphs; the only modules with torch
captures                captures on disk, so that a job that was killed captures nothing twice
retry, requests, job    asks the farm for programs, publishes traces
certificate, coverage   states what the farm has, signed; checks a farm against it
"""
