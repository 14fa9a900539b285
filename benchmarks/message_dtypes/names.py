"""The dtypes of messages that are compared."""

from __future__ import annotations

WHOLE = "fp32"
#: Names of dtypes, or of two of them, for activations and gradients.
DTYPES = ("fp16", "bf16", "int8", "e4m3", "e5m2", "int4")
PAIRS = (("int8", "bf16"), ("int4", "int8"))
