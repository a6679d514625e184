"""From a captured ATen graph to Prims."""
