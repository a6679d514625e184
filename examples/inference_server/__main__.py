"""`python -m examples.inference_server --listen 127.0.0.1:8080`: serves until SIGTERM."""

from __future__ import annotations

import argparse

import uvicorn

from examples.inference_server.app import make_app


def main() -> None:
    """Runs the server; requests in flight are finished when it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:8080", help="HOST:PORT")
    host, _, port = parser.parse_args().listen.rpartition(":")
    uvicorn.run(make_app(), host=host, port=int(port), log_level="warning")


main()
