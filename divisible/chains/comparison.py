"""The outputs and gradients of a chain, compared with those of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.chains.calls import ChainError
from divisible.chains.preserved_state import alike_run
from divisible.chains.returned import returned
from divisible.model import Divisible


def compare(
    chain: chainer.Chain,
    forward: Callable[..., Any],
    model: Divisible,
    inputs: Sequence[Any],
    modes: Sequence[bool],
) -> None:
    """Checks that the layers have the same results as the chain, in two calls.

    What a forward keeps from its first call shows in the second one.

    Args:
        chain (chainer.Chain): The chain.
        forward: The function of the chain that the layers replace.
        model (Divisible): The layers.
        inputs: Arrays of a minibatch.
        modes: Values of ``chainer.config.train``, for each of which results are
            compared.

    Raises:
        ChainError: If an output or a gradient differs from the chain's.
    """
    for train in modes:
        results = []
        for each in (forward, model):
            with alike_run(chain, train):
                outputs = _outputs(each, inputs)
                arrays = [y.array for y in outputs]
                gradients = _gradients(chain, outputs)
                again = [y.array for y in _outputs(each, inputs)]
                results.append((arrays, gradients, again))
        (ys, gradients, later), (own, others, own_later) = results
        if len(ys) != len(own):
            _differs("the number of outputs")
        shapes = " and ".join(str(x.shape) for x in inputs)
        mode = f"with chainer.config.train = {train} and inputs of shape {shapes}"
        for y, other in zip(ys, own):
            _check_close(f"the output {mode}", y, other)
        scale = max((float(abs(g).max()) for g in gradients.values()), default=0.0)
        for path in gradients.keys() | others.keys():
            what = f"the gradient of {path} {mode}"
            if path not in gradients or path not in others:
                _differs(what)
            _check_close(what, gradients[path], others[path], scale)
        for y, other in zip(later, own_later):
            if not _is_close(y, other):
                raise ChainError(
                    f"the output of a second call {mode} is not the chain's: forward"
                    f" keeps a value from one call to the next, as by self.h = h or"
                    f" self.n += 1, or resets the state of a link. Put what does it,"
                    f" and what reads the value, into the forward of a link of its own"
                )


def _outputs(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a chain, or of its layers, as variables."""
    try:
        # A forward may change its inputs.
        y = function(*[x.copy() for x in inputs])
    except Exception as error:
        position = getattr(error, "layer_position", None)
        if position is None:
            raise
        text = " ".join(str(error).split())
        raise ChainError(
            f"layer {position} raises {type(error).__name__} where the chain runs:"
            f" {text[:300]}. Its call depends on something that is neither a variable"
            f" nor an array: put the call and that into the forward of a link of its"
            f" own"
        ) from error
    return [chainer.as_variable(each) for each in returned(y)]


def _gradients(chain: chainer.Link, outputs: Sequence[Any]) -> dict[str, Any]:
    losses = []
    for y in outputs:
        if y.creator is not None and y.dtype.kind == "f":
            # The weights differ, because equal ones would give a softmax no gradient.
            weights = chain.xp.cos(chain.xp.arange(y.size))
            weights = weights.reshape(y.shape).astype(y.dtype)
            losses.append(chainer.functions.sum(y * weights))
    if losses:
        sum(losses[1:], losses[0]).backward()
    found = chain.namedparams()
    return {path: p.grad.copy() for path, p in found if p.grad is not None}


def _check_close(what: str, a: Any, b: Any, scale: float = 0.0) -> None:
    if not _is_close(a, b, scale):
        _differs(what)


def _is_close(a: Any, b: Any, scale: float = 0.0) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = map(chainer.backends.cuda.to_cpu, (a, b))
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    finite = np.abs(a[np.isfinite(a)].astype(np.float64))
    size = max(scale, finite.max(initial=0.0))
    # Sums may be computed in another order where branches meet.
    tolerance = size * float(np.finfo(a.dtype).eps) ** 0.5
    return np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


def _differs(what: str) -> None:
    raise ChainError(
        f"{what} is not the chain's: forward does something that neither a call of a"
        f" link nor one of Chainer's functions shows, such as unchain(), a change in"
        f" place, or another way in test mode, as by a flag or by chainer.config.train."
        f" Put what does it into the forward of a link of its own"
    )
