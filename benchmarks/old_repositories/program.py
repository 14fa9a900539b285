"""A program in a public repository."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: Writes data into a folder.
MakesData = Callable[[Path, np.random.RandomState], None]


class Change(NamedTuple):
    """One line that has to be changed.

    Attributes:
        file: File, from the root of the repository.
        line: Number of the line, from 1 on.
        text: New line, without its indentation.
    """

    file: str
    line: int
    text: str


class Repository(NamedTuple):
    """A repository whose modules a program imports.

    Attributes:
        repository: ``owner/name``.
        commit: Commit of the tree, or its first digits.
    """

    repository: str
    commit: str

    @property
    def name(self) -> str:
        """Name of the folder of its tree."""
        return self.repository.replace("/", "+")


class Program(NamedTuple):
    """A program and what a run of it needs.

    Attributes:
        repository: ``owner/name``.
        commit: Commit of the tree, or its first digits.
        kind: Kind of the network, such as ``GAN``.
        chainer: Version of Chainer that it was written for.
        command: Script and arguments, as one types them. A name ``with_...`` is a
            program in ``drivers``, for models whose own script cannot run here.
        folder: Folder that it is started in.
        data: Functions that write the files that it reads into that folder.
        downloads: Functions that write further files into Chainer's root of data sets.
        needs: Packages from PyPI, with conditions; one on NumPy is the older NumPy that
            is tried last.
        beside: Other repositories whose modules it imports.
        steps: Calls of ``backward`` to record.
        change: A line to change, if nothing else helps.
        beyond: Why no CPU with Python 3 can run it, or nothing.
        seconds: Deadline of one run.
    """

    repository: str
    commit: str
    kind: str
    chainer: str
    command: str
    folder: str = ""
    data: tuple[MakesData, ...] = ()
    downloads: tuple[MakesData, ...] = ()
    needs: tuple[str, ...] = ()
    beside: tuple[Repository, ...] = ()
    steps: int = 20
    change: Change | None = None
    beyond: str = ""
    seconds: float = 300.0

    @property
    def name(self) -> str:
        """Name of the folder of its tree."""
        return self.repository.replace("/", "+")

    @property
    def arguments(self) -> list[str]:
        """Script and arguments."""
        return shlex.split(self.command)

    @property
    def is_driver(self) -> bool:
        """Whether a program of ours calls the repository's model."""
        return self.command.startswith("with_")

    @property
    def is_chainer_1(self) -> bool:
        """Whether it was written for Chainer 1."""
        return self.chainer.split(".")[0] == "1"
