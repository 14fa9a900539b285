"""Files that were written well and changed badly since."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

#: What may stand where something else should.
NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 10**25, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from(
        [1e-320, 1e308, -0.0, "1F0", "\ud800", "a\nb", "a\x1b[2J", "9" * 30 + "F0"]
    ),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@st.composite
def broken(draw: Any, content: dict) -> bytes:
    """Draws what may have become of a file of JSON with this content."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 2))):
        _change(draw, content)
    data = json.dumps(content).encode()
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data)))
        put = draw(st.sampled_from([b"", b"\xff", b"\0", b"[" * 5000, b"9" * 5000]))
        data = data[:at] + put + data[draw(st.integers(at, len(data))) :]
    return data


def _change(draw: Any, content: Any) -> None:
    """Replaces, removes or adds something, somewhere."""
    while True:
        if isinstance(content, dict):
            key = draw(st.sampled_from([*content, "unknown"]))
        else:
            key = draw(st.integers(0, len(content) - 1))
        inner = content[key] if key != "unknown" else None
        if isinstance(inner, (dict, list)) and inner and draw(st.integers(0, 3)):
            content = inner
            continue
        if key != "unknown" and draw(st.integers(0, 3)) == 0:
            del content[key]
        else:
            content[key] = draw(NONSENSE)
        return
