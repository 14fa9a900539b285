"""The time of a step of one rank, in parts."""

from __future__ import annotations

from typing import NamedTuple


class StepSeconds(NamedTuple):
    """The parts of a step of one rank, in seconds.

    Attributes:
        forward: Computation 1 of Ozawa et al., with the loss.
        vertical: Communication 1, within the column, without waits for late ranks.
        backward: Computation 2.
        horizontal: Communication 2, between the columns; includes waits for late ranks.
        late: Waits for late ranks in communication 1.

    Example:
        >>> seconds = StepSeconds(1.0, 0.25, 2.0, 0.5, late=4.0)
        >>> seconds.t1(), seconds.t1(waits=True)
        (3.25, 7.25)
    """

    forward: float
    vertical: float
    backward: float
    horizontal: float
    late: float = 0.0

    def t1(self, waits: bool = False) -> float:
        """Returns the time by which lines move: forward, messages and backward.

        Args:
            waits: Whether waits for late ranks count.
        """
        own = self.forward + self.vertical + self.backward
        return own + self.late if waits else own
