"""A structure-aware fuzzer for every RPC and every codec; `python -m tests.fuzz --help`."""
