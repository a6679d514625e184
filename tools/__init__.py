"""Programs for developers: what `make docs` and `make lint` run beside the packages."""
