"""The farm's state as a JSON file, for tests and tools.

`{"state": "starting|ready|draining|stopped", "endpoint": "127.0.0.1:50051", "pid": 12,
"children": {"worker-cpu-0": {"pid": 13, "restarts": 0, "ready": true, "log": "/...",
"metrics": "127.0.0.1:41234"}}}`

`metrics` is empty for a process that serves none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from kernelfarm.processes.child import Child

STATUS_FILE = "farm.json"


def write_status(data_dir: Path, state: str, endpoint: str, children: Iterable[Child]) -> None:
    """Replaces the file atomically, so that readers never see a part of it."""
    status = {
        "state": state,
        "endpoint": endpoint,
        "pid": os.getpid(),
        "children": {
            child.spec.name: {
                "pid": child.pid,
                "restarts": child.restarts,
                "ready": child.is_ready,
                "log": str(child.log_path),
                "metrics": child.spec.metrics_address,
            }
            for child in children
        },
    }
    scratch = data_dir / f"{STATUS_FILE}.new"
    scratch.write_text(json.dumps(status, indent=2) + "\n", encoding="utf-8")
    scratch.replace(data_dir / STATUS_FILE)
