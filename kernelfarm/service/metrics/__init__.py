"""Metrics of services and workers in the format of Prometheus.

`declarations` names every metric of the project. `endpoint` serves them over HTTP, `processes` lets
several processes share one endpoint, and `durations` measures calls without slowing hits.
"""
