"""The number of restarts that a run may take, which grows again with progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Seconds before a restart after several ends without a finished step.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclass(frozen=True)
class Budget:
    """The restarts that a run may still take.

    Attributes:
        most: Number of restarts without progress.
        steps_to_recover: Number of saved steps that give one restart back.
        left: Number of restarts that are left.
        idle: Number of ends in a row before a step was finished.

    Raises:
        ValueError: If ``most`` is negative or ``steps_to_recover`` is not positive.

    Example:
        >>> budget = Budget(most=2, steps_to_recover=100)
        >>> budget = budget.after(n_steps=7).after(n_steps=250)
        >>> budget.left, budget.after(n_steps=250, n_saved=200).left
        (0, 1)
    """

    most: int = 5
    steps_to_recover: int = 100
    left: int | None = None
    idle: int = 0

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"there cannot be {self.most} restarts: give 0 or more")
        if self.steps_to_recover < 1:
            raise ValueError(
                f"{self.steps_to_recover} steps cannot give a restart back: give 1 or"
                f" more"
            )
        if self.left is None:
            object.__setattr__(self, "left", self.most)

    def after(self, n_steps: int, n_saved: int = 0) -> Budget:
        """Returns the budget after an end, with the restart that follows taken from it.

        Steps that no snapshot has are made again, and are no progress.

        Args:
            n_steps: Number of steps that were finished since the last start.
            n_saved: Number of those that a snapshot has.
        """
        left = min(self.left + n_saved // self.steps_to_recover, self.most)
        idle = 0 if n_steps else self.idle + 1
        return replace(self, left=left - 1, idle=idle)

    @property
    def is_spent(self) -> bool:
        """Whether the last restart was one too many."""
        return self.left < 0

    @property
    def pause(self) -> float:
        """Seconds to wait before the restart.

        There is none after a run that has finished a step. A host that cannot start
        ranks is not asked again and again.

        Example:
            >>> [Budget(idle=n).pause for n in (0, 1, 2, 9)]
            [0.0, 1.0, 2.0, 60.0]
        """
        if not self.idle:
            return 0.0
        return min(_FIRST_PAUSE * 2.0 ** (self.idle - 1), _LONGEST_PAUSE)
