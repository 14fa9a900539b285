"""How many examples of a property ``make test`` and ``make test-all`` try."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: Examples of ``make test-all`` for each example of ``make test``, which tries the same
#: ones in each run: after the first run, more of them find little.
SHARE = 4


def examples(n: int, **others: Any) -> settings:
    """Returns settings for ``n`` examples in ``make test-all``, and a quarter else.

    For properties of which 100 examples are too many or too few.
    """
    share = SHARE if settings.default.derandomize else 1
    return settings(max_examples=max(1, n // share), **others)
