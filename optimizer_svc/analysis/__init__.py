"""What passes ask about graphs and loop nests; nothing here changes anything."""
