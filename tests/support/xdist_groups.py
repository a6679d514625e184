"""Which tests a worker of pytest-xdist runs together (`--dist loadgroup`), and which come first.

Each test is in one group, by default that of its file, so that fixtures of modules are made once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Tests that kill, stop and time processes: one after another, beside tests that only compute.
FAULTS = (
    *("chaos", "faults", "fuzz", "kernelfarm/processes", "kernelfarm/service/process_pool"),
    *("kernelfarm/supervisor", "soak", "e2e/test_compile_time.py"),
    *("kernelfarm/cache/test_server_faults.py", "kernelfarm/cache/test_takeovers.py"),
)
# Files that share a farm, a browser or a process of the session.
TOGETHER = {
    "codegen_svc/emitters/triton": "triton",
    "codegen_svc/edge/test_dispatch.py": "codegen",
    "codegen_svc/worker/test_signed_kernels.py": "codegen",
    "e2e/test_tenants.py": "tenants",
    "frontend_svc/api/test_trace_claims.py": "tenants",
    "frontend_svc/api/test_trace_service.py": "tenants",
    "frontend_svc/api/test_tuning_service.py": "tenants",
    "frontend_svc/page/test_farm_page.py": "tenants",
    "kernelfarm/pages/test_in_browser.py": "tenants",
    "deploy/test_secure.py": "secrets",
    "deploy/test_secure_broker.py": "secrets",
}
VENDOR_FIXTURES = {"vendor_farm", "everything"}
# The longest groups begin first: a long one at the end would leave the other worker idle.
FIRST = ("faults", "vendors", "triton", "tenants")


# Runs before xdist's own hook, which reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks each test with its group; does nothing where pytest runs without xdist."""
    if not hasattr(config, "workerinput"):
        return
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _rank(groups[item]))  # stable: files keep their order


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails if xdist did not append the groups, as under a pytest that it does not support.

    Each worker would then start every farm, and tests that time processes would disturb each other.
    """
    if getattr(session.config.option, "loadgroup", False) and session.items:
        nodeid = session.items[0].nodeid
        if without_group(nodeid) == nodeid:
            raise pytest.UsageError(
                "pytest-xdist does not group tests; see pytest in pyproject.toml"
            )


def group_of(item: pytest.Item) -> str:
    """The group of a test."""
    if VENDOR_FIXTURES & set(getattr(item, "fixturenames", ())):
        return "vendors"
    path = item.path.relative_to(TESTS)
    if any(path.is_relative_to(timed) for timed in FAULTS):
        return "faults"
    return next((group for part, group in TOGETHER.items() if path.is_relative_to(part)), str(path))


def without_group(nodeid: str) -> str:
    """The name of a test without the group that xdist appends to it."""
    name, at, group = nodeid.rpartition("@")
    # A parameter may hold an @ too; its name ends with a bracket.
    return name if at and not group.endswith("]") else nodeid


def _rank(group: str) -> int:
    return FIRST.index(group) if group in FIRST else len(FIRST)
