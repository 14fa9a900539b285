"""How many examples are tried where each takes long."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(n: int, **others: Any) -> settings:
    """Returns settings for ``n`` examples in ``make test-all``, and a quarter else.

    For properties of which 100 examples take a second or more. ``make test`` tries the
    same examples in each run: after the first run, more of them find little.
    """
    share = 4 if settings.default.derandomize else 1
    return settings(max_examples=max(1, n // share), **others)
