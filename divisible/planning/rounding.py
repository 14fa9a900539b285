"""Bytes that activations save while they wait as bfloat16, and the seconds it takes.

A microbatch is rounded at the end of its forward. It is widened at the beginning of the
action that needs it. Neither happens if that action is the next one of its rank::

    F0 round   F1 round   ...   widen B0   widen B1
             2 bytes of each element
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from divisible.planning.coding import CodingRate, measure_coding
from divisible.planning.layer_sums import StageSums
from divisible.planning.profile import Profile
from divisible.schedules.recomputation import recomputed_share
from divisible.schedules.schedule import Schedule

# Name of bfloat16 among the dtypes of messages.
_MESSAGES = "bf16"
_SAVED_BYTES_OF_ELEMENT = 2


class Rounding(NamedTuple):
    """Activations that wait as bfloat16.

    Attributes:
        rate: Speed of rounding and of widening, on a rank whose speed is 1.
    """

    rate: CodingRate

    @classmethod
    def of(cls, profile: Profile) -> Rounding:
        """Returns the rounding at the speed of messages in bfloat16.

        Args:
            profile: Profile with that speed; it is measured here if there is none.
        """
        rate = profile.coding.get(_MESSAGES)
        return cls(measure_coding([_MESSAGES])[_MESSAGES] if rate is None else rate)

    def saved_bytes(self, sums: StageSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes that a waiting microbatch saves, for each stage.

        Args:
            sums: Sums over the layers of the stages.

        Returns:
            The bytes of input and graph together, and those of the input alone.
        """
        return sums.input_saved + sums.graph_saved, sums.input_saved

    def rounded(self, sums: StageSums) -> StageSums:
        """Returns sums with the sizes of input and graph while they wait."""
        return sums._replace(
            input_bytes=sums.input_bytes - sums.input_saved,
            graph_bytes=sums.graph_bytes - sums.graph_saved,
        )

    def costs(
        self, sums: StageSums, schedule: Schedule, speeds: np.ndarray
    ) -> dict[str, Any]:
        """Returns the fields of :class:`~divisible.schedules.Costs` for it.

        Args:
            sums: Sums over the layers of the stages.
            schedule: The schedule, with the forwards that run again. If it spares some
                microbatches that, the time is a mean.
            speeds: Speed of the rank of each stage.
        """
        activation, checkpoint = self.saved_bytes(sums)
        graph_share = 1 - recomputed_share(schedule)
        n = checkpoint + graph_share * (activation - checkpoint)
        n = n / (_SAVED_BYTES_OF_ELEMENT * speeds)
        return {
            "narrow": n / self.rate.encode,
            "widen": n / self.rate.decode,
            "activation_saved": activation,
            "checkpoint_saved": checkpoint,
        }
