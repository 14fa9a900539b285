"""Parameters that only ``make test-all`` tries."""

from __future__ import annotations

from typing import Any

import pytest


def matrix(*parameters: Any) -> list:
    """Returns parameters of `pytest.mark.parametrize` with the mark ``matrix``.

    Args:
        *parameters: Each the value of one name, or a tuple of those of several names.
    """
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=_MARK)
        for each in parameters
    ]


_MARK = pytest.mark.matrix
