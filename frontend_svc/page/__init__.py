"""The farm's page for browsers: programs, queues, workers and failures, read-only over HTTP."""
