"""The gRPC edge of the code generators: keys looked up, jobs queued and waited for."""
