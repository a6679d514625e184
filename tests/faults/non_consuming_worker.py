"""A worker that stops to poll the broker on SIGUSR2: run with `-m`.

It behaves like a worker whose consumer lost count of its messages.
"""

from __future__ import annotations

import signal
import sys

from kombu.transport.redis import Channel

from codegen_svc.worker.__main__ import main


def stop_consuming(*_: object) -> None:
    Channel._brpop_start = lambda channel, timeout=None: None


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, stop_consuming)
    sys.exit(main(sys.argv[1:]))
