"""Forks and the end of the process: channels are closed and threads are joined in time.

Also pauses of Python's garbage collector, while a package is loaded.
"""
