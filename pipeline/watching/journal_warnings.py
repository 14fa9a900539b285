"""Warnings of a run, in its journal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

# Different warnings that are kept. A script may warn in every minibatch.
_MOST = 50


class JournalWarnings:
    """Passes on the warnings of this process, besides showing them as before.

    Args:
        add: Function that gets the text of a warning, once for each text.

    Example:
        >>> found = []
        >>> with warnings.catch_warnings(record=True):
        ...     warnings.simplefilter("always")
        ...     watched = JournalWarnings(found.append)
        ...     watched.open()
        ...     warnings.warn("the disk is nearly full", stacklevel=1)
        ...     watched.close()
        >>> found
        ['UserWarning: the disk is nearly full']
    """

    def __init__(self, add: Callable[[str], None]) -> None:
        self._add = add
        self._seen: set[str] = set()

    def open(self) -> None:
        """Begins to pass on warnings."""
        self._before, self._show = warnings.showwarning, self._pass_on
        warnings.showwarning = self._show

    def _pass_on(self, message: Any, category: type, *place: Any, **more: Any) -> None:
        self._before(message, category, *place, **more)
        text = f"{category.__name__}: {message}"
        if text not in self._seen and len(self._seen) < _MOST:
            self._seen.add(text)
            self._add(text)

    def close(self) -> None:
        """Ends it, unless others have taken over the showing of warnings since."""
        if warnings.showwarning is self._show:
            warnings.showwarning = self._before
