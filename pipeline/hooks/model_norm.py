"""The norm of the gradients of the whole model, as Chainer computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from divisible import Divisible
from divisible.communication.parameter_sums import ParameterSums, Reduced, Reduction
from pipeline.calls.ranks import Ranks
from pipeline.hooks.parameter_paths import ParameterPaths

_HOST = chainer.get_device("@numpy")


class ModelNorm:
    """Adds up the squares of all ranks' gradients.

    Every rank gets the sum of squares of every parameter, and adds the sums as
    ``GradientClipping`` does. Sums are in the parameters' dtypes and in the order of
    the model's layers, with a loss last and each tied parameter once. So the norm has
    the same bits on every rank and for every cut. If the gradients equal those of the
    undivided model, so does the norm.

    Args:
        stages: This rank's stages, by number.
        paths (ParameterPaths): Paths of this rank's parameters.
        ranks (Ranks): All ranks of the pipeline.
    """

    def __init__(
        self, stages: Mapping[int, Divisible], paths: ParameterPaths, ranks: Ranks
    ) -> None:
        self._stages, self._paths, self._rank = stages, paths, ranks.rank
        self._timeout, self._watch = ranks.timeout, ranks.calls.check
        self._sums = ParameterSums(ranks.comm, self._timeout, self._watch)

    def squared(self, params: Sequence[chainer.Parameter]) -> Any:
        """Returns the sum of the squares of all gradients; all ranks must call it.

        Args:
            params: This rank's parameters with gradients, each once.

        Returns:
            A NumPy scalar of the parameters' dtype, which may be infinite or NaN.

        Raises:
            ValueError: If there are parameters that the first call did not have.
            StallError: If another rank does not call this in time.
        """
        reduction = self.begin(params)
        reduction.finish(self._timeout, self._watch)
        return self.squared_of(reduction.result())

    def begin(self, params: Sequence[chainer.Parameter]) -> Reduction:
        """Begins to add up the squares; the arguments and errors of :meth:`squared`.

        The first call waits for all ranks.
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
        return self._sums.begin(positions, _squares(params))

    def squared_of(self, reduced: Reduced) -> Any:
        """Returns the sum of the squares from the outcome of :meth:`begin`."""
        sums = reduced.sums[self._order].tolist()
        return sum(make(number) for make, number in zip(self._scalars, sums))

    def _path(self, i: int, param: chainer.Parameter) -> str:
        path = self._paths.of(param)
        # Another parameter of the optimizer is on this rank only.
        return f"/rank {self._rank}/{i}" if path is None else path

    def _gather(
        self, params: Sequence[chainer.Parameter], paths: Sequence[str]
    ) -> None:
        """Gathers all ranks' parameters, and brings them into the model's order."""
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
            # A tied parameter has the place of the first layer that uses it.
            scalars.setdefault(path, np.dtype(char).type)
        self._order = self._sums.positions(list(scalars))
        self._scalars = list(scalars.values())

    def close(self) -> None:
        """Frees the communicator; all ranks must call it."""
        self._sums.close()


def _squares(params: Sequence[chainer.Parameter]) -> np.ndarray:
    """Returns the sum of the squares of each gradient, in float64."""
    sums = []
    for param in params:
        with chainer.using_device(param.device):
            gradient = param.grad.ravel()
            sums.append(gradient.dot(gradient))
    if params and (device := params[0].device).xp is not np:
        # All at once, because each transfer would wait for the GPU.
        with chainer.using_device(device):
            sums = _HOST.send(device.xp.stack([s.astype(np.float64) for s in sums]))
    return np.array(sums, dtype=np.float64)
