"""Names of kernels in reports."""

from __future__ import annotations

import torch

from tests.support.single_operator import Call

NO_PLACES = Call("aten.nonzero_static.default", [torch.ones(7)], {"size": 0})
