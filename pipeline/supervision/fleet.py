"""The hosts of a run: which are used, which are spare, and which are lost.

::

    given a:2,b:2, spare c:2     a  b      4 ranks
    b is out of reach            a  c      4 ranks: a spare host takes its place
    c as well                    a         2 ranks with --shrink, or else it waits
    b is back                    a  b      4 ranks, at the next start

A host is lost while a launcher cannot start a program there, or if ranks there were
killed twice without progress. Such a host comes back when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Callable

from pipeline.supervision.hosts import Host
from pipeline.supervision.launching import Placement

# Number of ends of ranks on a host, without progress, after which it is left out.
_MOST_DEATHS = 2


def _all(n_ranks: int) -> bool:
    return True


def _none_to_ask(names: Collection[str]) -> set[str]:
    return set(names)


@dataclass
class Fleet:
    """The hosts that a run may use.

    Args:
        hosts: Hosts with the number of ranks that each may run, the preferred first;
            one without a name if the launcher chooses them.
        n_ranks: Number of ranks that the run should have.
        shrinks: Whether fewer ranks may run.
        answering: Function that returns which of some hosts can be reached.
        fits: Function that returns whether the script can train on a number of ranks.

    Attributes:
        out_of_reach: Names of hosts that did not answer last time.
        deaths: Number of ends of ranks on a host without progress, by its name.

    Example:
        >>> fleet = Fleet([Host("a", 2), Host("b", 2)], 4, shrinks=True)
        >>> print(fleet.place())
        4 ranks (a:2, b:2)
        >>> fleet.out_of_reach = {"b"}
        >>> print(fleet.place())
        2 ranks (a:2)
    """

    hosts: Sequence[Host]
    n_ranks: int
    shrinks: bool = False
    answering: Callable[[Collection[str]], set[str]] = _none_to_ask
    fits: Callable[[int], bool] = _all
    out_of_reach: set[str] = field(default_factory=set)
    deaths: dict[str, int] = field(default_factory=dict)

    @property
    def has_names(self) -> bool:
        """Whether the hosts are known, so that they can be asked."""
        return self.hosts[0].name != ""

    def look(self) -> None:
        """Asks all hosts whether they can be reached; waits some seconds at most."""
        self.out_of_reach = self.silent()

    def silent(self, busy: Collection[str] = ()) -> set[str]:
        """Returns the names of the hosts that do not answer.

        Args:
            busy: Names of hosts that are not asked, since ranks run there. A batch
                system may start no other program beside them.
        """
        if not self.has_names:
            return set()
        names = {host.name for host in self.hosts} - set(busy)
        return names - self.answering(names)

    def lose(self, host: str, has_progress: bool) -> None:
        """Counts an end of a rank on a host.

        Args:
            host: Name of the host.
            has_progress: Whether the run was saved often enough since the start.
        """
        before = 0 if has_progress else self.deaths.get(host, 0)
        self.deaths[host] = before + 1

    def forgive(self) -> None:
        """Allows hosts again on which ranks were killed."""
        self.deaths.clear()

    def place(self) -> Placement | None:
        """Returns the hosts of the next start; ``None`` if there are too few."""
        suspects = {n for n, times in self.deaths.items() if times >= _MOST_DEATHS}
        reached = [host for host in self.hosts if host.name not in self.out_of_reach]
        trusted = [host for host in reached if host.name not in suspects]
        found = self._filled(trusted, self.n_ranks)
        if found is not None:
            return found
        if self.shrinks:
            # The last host may still have room for fewer ranks.
            room = sum(host.slots for host in trusted) or sum(
                self._fewer(host) for host in reached
            )
            for n_ranks in range(min(room, self.n_ranks - 1), 0, -1):
                if self.fits(n_ranks):
                    return self._filled(trusted or reached, n_ranks)
        # A host with several deaths is better than none.
        return self._filled(reached, self.n_ranks)

    def _fewer(self, host: Host) -> int:
        """Returns the ranks of a host on which ranks were killed again and again."""
        used = min(host.slots, self.n_ranks)
        return max(1, used - self.deaths.get(host.name, 0) // _MOST_DEATHS)

    def _filled(self, hosts: Sequence[Host], n_ranks: int) -> Placement | None:
        """Returns a placement that fills hosts in order; ``None`` without room."""
        left, found = n_ranks, []
        for host in hosts:
            if left:
                found.append(host._replace(slots=min(host.slots, left)))
                left -= found[-1].slots
        return None if left or not found else Placement(tuple(found))

    def missing(self) -> str:
        """Returns words for the hosts that are lost; empty if there are none."""
        suspects = sorted(
            f"{name} ended ranks {times} times"
            for name, times in self.deaths.items()
            if name and times >= _MOST_DEATHS
        )
        silent = ", ".join(sorted(self.out_of_reach))
        if silent:
            suspects.append(f"{silent} {_is_are(self.out_of_reach)} out of reach")
        return "; ".join(suspects)


def _is_are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"
