"""Forks and the end of the process: channels are closed and threads are joined in time."""
