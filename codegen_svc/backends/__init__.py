"""One folder for each vendor; discovered, never listed."""
