"""Shims: repairs of one Chainer module each, as data, with the condition of their need.

The shims themselves are in the tables ``_shims_*.py``, one per concern.
"""

import importlib.util
import re
from typing import Callable, NamedTuple, Optional

APPLIED = "applied"
READY = "ready"
NOT_NEEDED = "not needed"
FAILED = "FAILED"


class TextNotFound(Exception):
    """The text that a shim replaces is not in the module as often as it should."""


class Status(NamedTuple):
    """The state of one shim.

    Attributes:
        name (str): Name of the shim.
        module (str): Module of Chainer that the shim repairs.
        state (str): ``'applied'``; ``'ready'``, when the module has not been
            imported yet; ``'not needed'`` with the installed versions; or
            ``'FAILED'``.
        detail (str): The file that was edited, or the reason.
        why (str): Fault of Chainer without the shim.
    """

    name: str
    module: str
    state: str
    detail: str
    why: str


class Edit(NamedTuple):
    """Replaces ``old`` by ``new``, which must occur ``count`` times."""

    old: str
    new: str
    count: int = 1

    def apply(self, text: str) -> str:
        """Returns the edited text; raises TextNotFound if ``old`` is not found."""
        found = text.count(self.old)
        if found != self.count:
            raise TextNotFound(
                f"{self.old.strip()!r} occurs {found} times instead of {self.count}; "
                "is this Chainer 7.8.1?"
            )
        return text.replace(self.old, self.new)


class Shim(NamedTuple):
    """One repair of one module.

    Attributes:
        name (str): Name in the report.
        module (str): The module that the shim edits.
        why (str): Fault of Chainer without the shim.
        edits (tuple): Edits, applied in order.
        transform (callable): Function from source to source, instead of edits.
        why_not_needed (callable): Returns None if the shim is needed, else the reason
            why not, such as ``'numpy 1.22.4'``.
    """

    name: str
    module: str
    why: str
    edits: tuple[Edit, ...] = ()
    transform: Optional[Callable[[str], str]] = None
    why_not_needed: Callable[[], Optional[str]] = lambda: None

    def apply(self, text: str) -> str:
        """Returns the edited source."""
        for edit in self.edits:
            text = edit.apply(text)
        return self.transform(text) if self.transform else text

    def status(self, state: str, detail: str) -> Status:
        """Returns this shim's line of the report."""
        return Status(self.name, self.module, state, detail, self.why)


def since(package: str, version: str) -> Callable[[], Optional[str]]:
    """Returns a function for ``why_not_needed`` that compares a package's version.

    Args:
        package (str): Name to import, for instance ``'numpy'``.
        version (str): First version that breaks Chainer, for instance ``'2.0'``.
    """

    def why_not_needed() -> Optional[str]:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            return f"{package} is not installed"
        installed = installed_version(package)
        if installed is None:
            return f"{package} cannot be imported"
        if release(installed) < release(version):
            return f"{package} {installed}"
        return None

    return why_not_needed


def installed_version(package: str) -> Optional[str]:
    """Returns the version of a package, importing it, or None if that fails."""
    try:
        return importlib.import_module(package).__version__
    except Exception:
        # CuPy raises any error that CUDA makes it raise. Chainer continues without it.
        return None


def release(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, ``'2.0.1rc1'`` -> ``(2, 0, 1)``."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
