"""The norm of the gradients of the whole model, as Chainer computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from divisible import Divisible
from divisible.communication.parameter_sums import ParameterSums
from pipeline.calls.ranks import Ranks
from pipeline.hooks.parameter_paths import ParameterPaths

_HOST = chainer.get_device("@numpy")


class ModelNorm:
    """Adds up the squares of all ranks' gradients.

    Every rank gets the sum of squares of every parameter, and adds them up as
    ``GradientClipping`` does: in the parameters' dtypes, in the order of the model's
    layers, those of a loss last, each tied parameter once. So the norm has the same
    bits on every rank and every cut, and those of the undivided model if the gradients
    have.

    Args:
        stages: This rank's stages by their numbers.
        paths (ParameterPaths): Of this rank's parameters.
        ranks (Ranks): All ranks of the pipeline.
    """

    def __init__(
        self, stages: Mapping[int, Divisible], paths: ParameterPaths, ranks: Ranks
    ) -> None:
        self._stages, self._paths, self._rank = stages, paths, ranks.rank
        self._sums = ParameterSums(ranks.comm, ranks.timeout, ranks.calls.check)

    def squared(self, params: Sequence[chainer.Parameter]) -> Any:
        """Returns the sum of the squares of all gradients; a call of all ranks.

        Args:
            params: Those of this rank, each once, with gradients.

        Returns:
            A NumPy scalar of the parameters' dtype; infinity and NaN as they come.

        Raises:
            ValueError: If there are parameters that were not there before.
            StallError: If another rank does not come.
        """
        paths = [self._path(i, param) for i, param in enumerate(params)]
        if self._sums.paths is None:
            self._gather(params, paths)
        try:
            positions = self._sums.positions(paths)
        except KeyError as error:
            raise ValueError(
                f"{', '.join(error.args)} came after the ranks had agreed on the"
                f" model's parameters: make a new Pipeline on all ranks"
            ) from None
        sums = self._sums.reduce(positions, _squares(params)).sums[self._order]
        return sum(make(number) for make, number in zip(self._scalars, sums.tolist()))

    def _path(self, i: int, param: chainer.Parameter) -> str:
        path = self._paths.of(param)
        # What else the optimizer updates is on this rank only.
        return f"/rank {self._rank}/{i}" if path is None else path

    def _gather(
        self, params: Sequence[chainer.Parameter], paths: Sequence[str]
    ) -> None:
        """Learns of all ranks' parameters, and puts them into the model's order."""
        places = {
            id(param): (number, i)
            for number, stage in reversed(sorted(self._stages.items()))
            for i, param in enumerate(stage.params())
        }
        notes = [
            (places.get(id(param), (np.inf, i)), path, param.dtype.char)
            for i, (param, path) in enumerate(zip(params, paths))
        ]
        everywhere = self._sums.gather(paths, notes)
        scalars: dict[str, type] = {}
        for _, path, char in sorted(note for notes in everywhere for note in notes):
            # A tied parameter is where the first layer is that has it.
            scalars.setdefault(path, np.dtype(char).type)
        self._order = self._sums.positions(list(scalars))
        self._scalars = list(scalars.values())

    def close(self) -> None:
        """Frees the communicator; a call of all ranks."""
        self._sums.close()


def _squares(params: Sequence[chainer.Parameter]) -> np.ndarray:
    """Returns the sum of the squares of each gradient, in float64."""
    sums = []
    for param in params:
        with chainer.using_device(param.device):
            gradient = param.grad.ravel()
            sums.append(gradient.dot(gradient))
    if params and (device := params[0].device).xp is not np:
        # All at once, because a GPU has to be waited for.
        with chainer.using_device(device):
            sums = _HOST.send(device.xp.stack([s.astype(np.float64) for s in sums]))
    return np.array(sums, dtype=np.float64)
