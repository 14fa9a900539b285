"""Update rules on flat buffers: what the loops for CPU and GPU have in common."""

from __future__ import annotations

#: Of buffers, in elements.
ALIGNMENT = 64
