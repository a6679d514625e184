"""What every family is written with: the table, arguments, shapes, types, and the graph builder."""
