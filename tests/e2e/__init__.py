"""What the project promises, through a running farm."""
