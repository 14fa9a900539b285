"""Supervisors of commands that tests give, and launchers that do not reach a host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.supervision.budget import Budget
from pipeline.supervision.fleet import Fleet
from pipeline.supervision.hosts import Host
from pipeline.supervision.launching import Placement
from pipeline.supervision.supervisor import Supervisor
from tests.support.loaded_python import loaded_executable


def divisible(*words: object) -> list[str]:
    """Returns a command ``divisible WORDS...`` whose ranks start in less time."""
    program = (
        f"import sys; sys.executable = {loaded_executable()!r};"
        " import divisible_command as it; it.main()"
    )
    return [sys.executable, "-c", program, *map(str, words)]


@dataclass
class Fixed:
    """A command that is the same on all hosts."""

    words: Sequence[str]

    def command(self, placement: Placement) -> list[str]:
        return [*self.words]


def supervisor(
    command: Sequence[str], n_ranks: int, budget: Budget, **options: Any
) -> Supervisor:
    """Returns the supervisor of a command, whose launcher chooses the hosts."""
    fleet = Fleet([Host("", n_ranks)], n_ranks)
    return Supervisor(Fixed(command), fleet, budget, **options)


def launcher_of_hosts(folder: Path, launcher: str) -> str:
    """Returns a launcher that reaches a host unless there is a file ``down-HOST``.

    All ranks run here, whatever their host is called.

    Args:
        folder: Folder of the launcher and of these files.
        launcher: Launcher that starts the ranks.
    """
    path = folder / "mpiexec-of-hosts"
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" != -hosts ]; then exec {launcher} "$@"; fi\n'
        'names=$(echo "$2" | tr , " "); shift 2\n'
        "for name in $names; do\n"
        f'    if [ -e "{folder}/down-${{name%:*}}" ]; then\n'
        '        echo "no route to $name" >&2; exit 255\n'
        "    fi\n"
        "done\n"
        'if [ "$3" = true ]; then exit; fi\n'
        f'exec {launcher} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)
