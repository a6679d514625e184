"""From a traced module to the graph that travels, and the tracing before it."""
