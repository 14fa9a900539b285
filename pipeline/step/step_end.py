"""The end of a step: the means, which the last stage's rank sends to all ranks.

A rank's part of a step ends with its own last action. Gradients of its stages are
complete then, so an optimizer that needs nothing else may update them at once. Only the
means of the minibatch are known later, when the last stage's rank has ended its part::

    rank 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 | update | F0 F1 ...
    rank 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 | update | F0 ...
    rank 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4 | update | F0 ...
                                                                '---> the means

**Owner.** `StepEnd` is the end of one step on one rank. `Step` holds that of its last
call. The messages, and the arrays for them, belong to `LateNumbers`, which lives until
they have come, whatever becomes of the pipeline.

**Finish.** An end is finished when the script reads its result, or at the latest

* when the rank has run all actions of the next step;
* before another call, such as ``evaluate``, ``close`` or a snapshot;
* when the script ends.

So one end is under way at most. A finish waits for one message of one rank, within the
timeout. The sender needs nothing more from this rank.

**Counts.** A ``lossfun`` that counts samples itself makes all gradients wait for its
count. The last stage's rank then sends the means behind its last forward, and each rank
reads them at the end of its part::

    rank 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 reads | update | F0 ...
    rank 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4 | update | F0 ...
                                              '---> the means

**Comparison of the calls.** The comparison ends within the step. All ranks have begun a
step before any rank's last backward in it, so no rank waits. A disagreement is raised
in its own step, before any optimizer updates.

**Errors of other ranks.** A rank that fails in a step ends all ranks, while some may be
in the next step. Its message has the number of its step. A rank that ends its script
without an error sends a notice. A rank that waits for it, in the next step or in a
read, raises an error at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.communication.late_numbers import LateNumbers
from divisible.weighted_means import weighted_mean
from pipeline.calls.ranks import Ranks


class StepEnd(NamedTuple):
    """The means of a minibatch, and the numbers that its gradients need.

    Attributes:
        names: Names of the means.
        replica: Number of this rank's replica.
        rows: A row for each replica: its means, the number of samples in each mean, and
            the factor for the minibatch's gradients.
        late: Message that fills in the rows; ``None`` if they are known already.
    """

    names: Sequence[str]
    replica: int
    rows: np.ndarray
    late: LateNumbers | None

    def read(self) -> np.ndarray:
        """Returns the rows; waits for them."""
        return self.rows if self.late is None else self.late.read()

    def means(self) -> dict[str, float]:
        """Returns the means over all replicas by name; waits for them."""
        rows, n = self.read(), len(self.names)
        means = rows[0, :n].tolist()
        if len(rows) > 1:
            columns = zip(rows[:, :n].T, rows[:, n : 2 * n].T)
            # A fixed order of additions gives the same bits on every rank.
            means = itertools.starmap(weighted_mean, columns)
        return dict(zip(self.names, means))

    @property
    def correction(self) -> float:
        """The factor for this replica's gradients; waits for it."""
        return float(self.read()[self.replica, -1])

    @property
    def n_counted(self) -> dict[str, float]:
        """Number of samples of all replicas in each mean, by name; waits for it."""
        n = len(self.names)
        return dict(zip(self.names, self.read()[:, n : 2 * n].sum(axis=0).tolist()))

    @property
    def n_samples(self) -> int | None:
        """Number of this replica's samples that the loss is a mean over.

        ``None`` if no replica has samples. Waits for the number.

        Raises:
            ValueError: If ``lossfun`` counted a fraction of a sample.
        """
        counts = self.read()[:, len(self.names) + self.names.index("loss")].tolist()
        if not any(counts):
            return None
        counted = counts[self.replica]
        if counted != int(counted):
            raise ValueError(
                f"lossfun counts {counted} samples in replica {self.replica}: replicas"
                f" need whole numbers, by which their gradients are weighted"
            )
        return int(counted)


def of_replicas(ranks: Ranks, values: np.ndarray, about: str) -> np.ndarray:
    """Returns a row of numbers for each replica; all ranks must call it.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        values: The numbers of this rank. Only those of a replica's last stage are
            returned.
        about (str): Name of the numbers, for error messages.
    """
    return ranks.gather(values, f"to tell {about}").read()[ranks.last_ranks]
