"""Execution of plans: a plan and its loaded kernels become a callable."""
