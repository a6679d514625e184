"""Real models and inputs, and programs that demonstrate the farm."""
