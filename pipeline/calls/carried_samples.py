"""The samples whose states layers carry, as ranks compare them in each call.

A replica goes on from the states that it has itself. So the samples of each replica
must begin at the same place of the minibatch as those that its states belong to::

    minibatch 0    0 1 2 | 3 4 5      two replicas
    minibatch 1    0 1 2 | 3          goes on
    minibatch 2    0 1   | 2 3        would go on from the states of other samples
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.calls import differences

#: A number of samples with a state, and the path of a link with it.
State = tuple


def code_of(state: State, carriers: Sequence[str]) -> int:
    """Returns a number for a state; the fewest samples have the largest.

    Args:
        state: Number of samples, and the path of a link with their state.
        carriers: Paths of all links with a state.

    Example:
        >>> of_code(code_of((3, "/2/b"), ["/1/a", "/2/b"]), ["/1/a", "/2/b"])
        (3, '/2/b')
    """
    n, path = state
    return -(n * len(carriers) + carriers.index(path))


def of_code(code: int, carriers: Sequence[str]) -> State:
    """Returns the state of a number from :func:`code_of`."""
    n, place = divmod(-code, len(carriers))
    return n, carriers[place]


def check_carried(n_inputs: Sequence[int], states: Sequence[State | None]) -> None:
    """Refuses samples that would go on from the states of no sample, or of another one.

    Args:
        n_inputs: Number of samples of ``x`` in each replica.
        states: For each replica the number of samples with a state, and the path of a
            link with one; ``None`` if it begins without a state.

    Raises:
        DisagreementError: If a replica has more samples than states, or begins
            elsewhere in the minibatch than its states.
    """
    start = start_before = 0
    are_known = True
    for replica, (n, state) in enumerate(zip(n_inputs, states)):
        if state is None:
            are_known = False
            continue
        n_before, path = state
        if n > n_before:
            where = f" in replica {replica}" if len(n_inputs) > 1 else ""
            raise differences.of_states(n, n_before, path, where)
        if are_known and n > 0 and start != start_before:
            raise differences.of_places(replica, start, start_before, path)
        start, start_before = start + max(n, 0), start_before + n_before
