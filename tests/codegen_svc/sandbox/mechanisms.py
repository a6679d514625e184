"""All mechanisms of the sandbox, as a setting names them."""

from __future__ import annotations

from codegen_svc.sandbox.level import Mechanism

ALL = "+".join(mechanism.value for mechanism in Mechanism)
