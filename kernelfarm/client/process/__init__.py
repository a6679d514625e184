"""The life of a process: forks, and the end."""
