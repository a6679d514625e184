"""What the command line shows of programs, traces and the disk tier."""
