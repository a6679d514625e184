"""Prints the operator table as Markdown: `python -m frontend_svc.operators > docs/operators.md`."""

from __future__ import annotations

import sys

from frontend_svc.operators.table import operator_table

if __name__ == "__main__":
    sys.stdout.write(operator_table())
