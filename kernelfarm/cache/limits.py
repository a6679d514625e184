"""How long the cache keeps what it stores, and how much of it."""

from __future__ import annotations

DAY_S = 24 * 3600

MANIFEST_TTL_S = 30 * DAY_S
"""Entries expire a month after their last use."""

BLOB_TTL_S = MANIFEST_TTL_S + DAY_S
"""Blobs outlive every manifest that names them."""

ATTEMPTS_TTL_S = 3600
JOB_TTL_S = DAY_S
REPORT_TTL_S = 15
SLOW_TTL_S = 3600

TOOLCHAIN_WINDOW_MS = 3600 * 1000
"""A toolchain counts as advertised for this time after its last report, so that the old and the new
toolchain both serve during an upgrade."""

MAX_VARIANTS = 16
"""Variants of one entry. Beyond this number, the oldest variants with a guard are removed."""

MAX_FAILURES = 10_000
"""Recorded failures of one namespace and key space; each takes 2.5 KB at most."""

MAX_TUNING_RECORDS = 2_000
"""Tuning subjects of one namespace; the ones unused for longest are dropped. A subject takes 19 KB
at most, 9 reports on 256 candidates, so all take 38 MB at most. Quotas do not count them."""
