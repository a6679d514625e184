"""Child processes: started, watched, started again, stopped."""
