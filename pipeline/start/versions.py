"""The version of the package on each rank, compared before anything else.

Ranks of different versions may take messages for something else. Hosts often have
checkouts of their own, whose version number is the same and whose sources differ, so
the sources of what ranks say to each other are compared as well.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import divisible
from divisible._version import __version__
from divisible.communication.errors import DisagreementError

_PACKAGE = Path(__file__).parents[1]
_SPEAKING = _PACKAGE, Path(divisible.__file__).parent / "communication"


class Sealed(NamedTuple):
    """A rank's words, which only a rank of the same version opens.

    Attributes:
        version: The version of the rank's package.
        host: The name of its host.
        words: Its words, pickled.
    """

    version: str
    host: str
    words: bytes


def sealed(words: Any) -> Sealed:
    """Returns words of this rank for all others."""
    return Sealed(version(), socket.gethostname(), pickle.dumps(words))


def opened(said: Sequence[Sealed]) -> list[Any]:
    """Returns what all ranks said.

    Args:
        said: By all ranks, in their order.

    Raises:
        DisagreementError: If a rank has another version of the package.
    """
    titles = [_title(each) for each in said]
    for rank, (title, host) in enumerate(titles):
        if title != titles[0][0]:
            raise DisagreementError(
                f"rank 0{titles[0][1]} runs {titles[0][0]}, and rank {rank}{host} runs"
                f" {title}. Install the same version of divisible on all hosts"
            )
    return [pickle.loads(each.words) for each in said]


def _title(each: Any) -> tuple[str, str]:
    """Returns the version of a rank, and where the rank runs, for a message."""
    if isinstance(each, Sealed):
        return each.version, f" on {each.host}"
    return "a divisible that does not tell its version", ""


@functools.cache
def version() -> str:
    """Returns the number of the version, and a digest of what speaks to other ranks."""
    content = hashlib.sha256()
    for folder in _SPEAKING:
        for path in sorted(folder.rglob("*.py")):
            content.update(path.read_bytes())
    return f"divisible {__version__} of the sources {content.hexdigest()[:8]}"
