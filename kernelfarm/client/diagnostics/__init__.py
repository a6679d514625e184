"""Data for the command line: stages of programs, local traces, the state of the disk tier."""
