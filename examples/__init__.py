"""Real inputs, and programs that show the farm at work."""
