"""Number of samples of a minibatch, which a user sets for one update."""

from __future__ import annotations

from divisible.user_warnings import warn_user


class SampleCount:
    """The number of samples that is set for the next update.

    Args:
        warns: Whether to warn if an update without a number follows one with a number.

    Attributes:
        value: The number; ``None`` if none is set.
    """

    def __init__(self, warns: bool) -> None:
        self._warns = warns
        self.value: int | None = None
        # Whether a value was set for the next update, and a number for the last one.
        self._is_set = self._was_number = False

    def set(self, value: int | None) -> None:
        """Sets the number for the next update; ``None`` if minibatches are alike."""
        self.value, self._is_set = value, True

    def take(self) -> int | None:
        """Returns the number for the running update, and resets it."""
        value, self.value = self.value, None
        if self._warns and self._was_number and not self._is_set:
            warn_user(
                "n_samples was set for the last update, but not for this one, whose"
                " mean counts the minibatches of all ranks alike: the number holds for"
                " one update. Set it before each update; or set it to None where"
                " minibatches have one size",
            )
        self._was_number, self._is_set = value is not None, False
        return value
