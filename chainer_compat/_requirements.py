"""The part of pkg_resources that ``chainer.testing`` uses, from the standard library.

Chainer's test decorators ask whether requirements such as ``'scipy>=0.19'`` or
``'numpy!=1.11.*'`` are met. setuptools 81 dropped pkg_resources, which checked them.
"""

import importlib.metadata
import operator
import re

from chainer_compat._shim import release

_COMPARISONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


class ResolutionError(Exception):
    """A requirement is not met."""


class WorkingSet:
    """The installed distributions."""

    def require(self, *requirements: str) -> None:
        """Raises ResolutionError unless all requirements are met."""
        for requirement in requirements:
            if not _is_met(requirement):
                raise ResolutionError(requirement)


def _is_met(requirement):
    name, conditions = re.fullmatch(
        r"\s*([\w.-]+)\s*(.*)", requirement, re.DOTALL
    ).groups()
    try:
        installed = release(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False
    return all(
        _holds(installed, condition.strip())
        for condition in conditions.split(",")
        if condition.strip()
    )


def _holds(installed, condition):
    """Compares release numbers, '1.2' as '1.2.0'; '.*' ignores all behind it."""
    match = re.fullmatch(r"(<=|>=|==|!=|<|>)\s*(\d[\d.]*?)(\.\*)?", condition)
    if match is None:
        raise ValueError(f"cannot read the version condition {condition!r}")
    compare, wanted, prefix = match.groups()
    wanted = release(wanted)
    length = len(wanted) if prefix else max(len(wanted), len(installed))
    padded = [(v + (0,) * length)[:length] for v in (installed, wanted)]
    return _COMPARISONS[compare](*padded)
