"""Executes plans: turns a plan and its loaded kernels into a callable."""
