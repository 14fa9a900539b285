"""The copies of a run in the memory of hosts, as a part of its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.between_steps import BetweenSteps

if TYPE_CHECKING:
    from pipeline.copies.copies import Copies


class WithCopies(BetweenSteps):
    """A pipeline whose run may be copied to the memory of hosts."""

    _copies: Copies | None = None

    @property
    def copies(self) -> Copies:
        """The :class:`~pipeline.copies.copies.Copies` of this run in memory."""
        if self._copies is None:
            # A run without copies does not load what they need.
            from pipeline.copies.copies import Copies

            self._copies = Copies(self)
        return self._copies
