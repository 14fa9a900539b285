"""The version of the package on each rank, compared before anything else.

Ranks of different versions may misread each other's messages. Hosts often have
checkouts of their own, with the same version number and different sources. So the
sources that determine messages are compared as well.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

import divisible
from divisible._version import __version__
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError

_PACKAGE = Path(__file__).parents[1]
_SPEAKING = _PACKAGE, Path(divisible.__file__).parent / "communication"
_REMEDY = "Install the same version of divisible on all hosts"


def told(comm: MPI.Comm, words: Any, timeout: float) -> list[Any]:
    """Returns the values of all ranks at the start; all ranks must call it.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        words: Value of this rank, any picklable object.
        timeout (float): Seconds to wait for the other ranks.

    Raises:
        DisagreementError: If a rank has another version of the package.
        StallError: If another rank does not answer in time.
    """
    try:
        said = all_gather(comm, sealed(words), timeout, "to start")
    except (ImportError, AttributeError) as error:
        # Older versions pickled objects of classes that have moved, or do not exist
        # now.
        raise DisagreementError(
            f"rank {comm.rank} runs {version()}, and cannot read what a rank of another"
            f" version says ({error}). {_REMEDY}"
        ) from error
    return opened(said)


def sealed(words: Any) -> tuple[str, str, bytes]:
    """Returns a rank's value in a form that only ranks of the same version open.

    The result has plain types, which ranks of any version can read.

    Returns:
        Version of the package, name of the host, and the pickled value.
    """
    return version(), socket.gethostname(), pickle.dumps(words)


def opened(said: Sequence[Any]) -> list[Any]:
    """Returns the values of all ranks.

    Args:
        said: Results of :func:`sealed`, in the order of the ranks.

    Raises:
        DisagreementError: If a rank has another version of the package.
    """
    titles = [_title(each) for each in said]
    for rank, (title, host) in enumerate(titles):
        if title != titles[0][0]:
            raise DisagreementError(
                f"rank 0{titles[0][1]} runs {titles[0][0]}, and rank {rank}{host} runs"
                f" {title}. {_REMEDY}"
            )
    return [pickle.loads(words) for _, _, words in said]


def _title(each: Any) -> tuple[str, str]:
    """Returns the version of a rank, and a text about its host, for a message."""
    if isinstance(each, tuple) and [*map(type, each)] == [str, str, bytes]:
        return each[0], f" on {each[1]}"
    return "a divisible that does not tell its version", ""


@functools.cache
def version() -> str:
    """Returns the version number, and a digest of the sources that make messages."""
    content = hashlib.sha256()
    for folder in _SPEAKING:
        for path in sorted(folder.rglob("*.py")):
            content.update(path.read_bytes())
    return f"divisible {__version__} of the sources {content.hexdigest()[:8]}"
