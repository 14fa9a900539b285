"""The result of an exchange on all replicas, computed in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_parallel import oyama2017, two_roundings
from data_parallel.nodes import lanes_of, nodes_of, shares, slices_of
from data_parallel.settings import Settings, check_integer
from divisible.communication.wire import BLOCK


class ExchangeResult(NamedTuple):
    """The result of an exchange, equal on every replica.

    Attributes:
        mean (numpy.ndarray): The mean that every replica gets, float32. If a gradient
            has infinity or NaN, so has the mean. A mean that is coded in two roundings
            is then NaN as a whole.
        sent_bytes (int): Bytes that the replica with the most traffic sends to other
            nodes.
        q (float or None): The quantile of ``'oyama2017'``.
        codes (numpy.ndarray or None): Codes of the sum with ``'oyama2017'``, uint8,
            flat.
        residuals (list or None): For each replica its rounding errors, to be added to
            its next gradient. If the mean is not finite, the residuals before. ``None``
            without error feedback.
    """

    mean: np.ndarray
    sent_bytes: int
    q: float | None = None
    codes: np.ndarray | None = None
    residuals: list[np.ndarray] | None = None


def simulate_exchange(
    gradients: Sequence[np.ndarray],
    *,
    exchange_dtype: str | None = None,
    strategy: str = "two_roundings",
    local_size: int = 1,
    n_samples: Sequence[int] | None = None,
    block: int = BLOCK,
    weights: np.ndarray | None = None,
    q: float | None = None,
    rounding: str | None = None,
    quantile: float = 0.95,
    samples: int = 1024,
    epsilon: float = 1e-5,
    ratio: bool = True,
    seed: int = 0,
    array: str = "0",
    renewal: int = 0,
    residuals: Sequence[np.ndarray] | None = None,
) -> ExchangeResult:
    """Returns the result of an exchange between replicas, without MPI.

    Args:
        gradients: Float32 arrays of one shape, one for each replica, in rank order.
        exchange_dtype (str): Name of the dtype in which arrays are sent: ``'fp32'``,
            ``'fp16'``, ``'bf16'``, ``'e5m2'``, ``'e4m3'`` or ``'int8'``. Also
            ``'fp8'``, which is e5m2 with ``'oyama2017'``, else e4m3. By default
            ``'int8'``, and ``'fp8'`` with ``'oyama2017'``.
        strategy (str): With ``'two_roundings'`` numbers are encoded, added up in
            float32, and encoded again. With ``'oyama2017'``, Algorithm 1 of Oyama et
            al., they are rounded after each addition.
        local_size (int): Number of replicas of a node. The sum within a node is in
            float32 with ``'two_roundings'``. The part of a single node is not rounded.
        n_samples: Number of samples of each replica's minibatch, for a weighted mean;
            ``None`` if all are alike.
        block (int): Number of elements that share a scale; a multiple of 16.
        weights: Weights for the ratios of ``'oyama2017'``, of the gradients' shape.
        q (float): The quantile of ``'oyama2017'``, instead of the gradients' own.
        rounding (str): ``'truncate'`` or ``'nearest'``; ``None`` for the strategy's
            own, truncation for ``'oyama2017'``.
        quantile (float): Quantile of the ratios to the weights that becomes q.
        samples (int): Largest number of elements from which q is computed.
        epsilon (float): Number that is added to the magnitudes of the weights.
        ratio (bool): Whether ``'oyama2017'`` sends gradients relative to the weights;
            otherwise the gradients themselves.
        seed (int): Seed of the choice of these elements. The choice differs between
            replicas, arrays and renewals.
        array (str): Name of the array; that of the first one of
            :meth:`Exchange.mean() <data_parallel.Exchange.mean>` is ``'0'``, and that
            of a parameter its path.
        renewal (int): Number of the renewal that q belongs to, from 0 on: the number of
            exchanges before this one by ``every``, rounded down.
        residuals: Rounding errors of each replica so far, zeros at first. With them
            there is error feedback.

    Returns:
        ExchangeResult: The mean, and more.

    Raises:
        ValueError: If an argument is out of its range, or arrays do not fit.
        TypeError: If a gradient is not float32, or an integer is something else.

    Example:
        >>> gradients = [np.array([1, -3], 'f'), np.array([3, 1], 'f')]
        >>> simulate_exchange(gradients, exchange_dtype='fp32').mean
        array([ 2., -1.], dtype=float32)
        >>> simulate_exchange(gradients, exchange_dtype='int8').mean
        array([ 1.996063, -1.00589 ], dtype=float32)
    """
    check_integer("renewal", renewal, 0)
    settings = Settings(
        exchange_dtype=exchange_dtype,
        strategy=strategy,
        block=block,
        rounding=rounding,
        quantile=quantile,
        samples=samples,
        epsilon=epsilon,
        ratio=ratio,
        seed=seed,
        q=q,
    ).checked()
    flat = _flat(gradients, "gradients")
    shape, n_replicas = np.shape(gradients[0]), len(flat)
    _check_local_size(local_size, n_replicas, settings)
    sent = _sent_bytes(flat[0].size, n_replicas, local_size, settings)
    if settings.is_oyama2017:
        if ratio and weights is None:
            raise ValueError(oyama2017.NEEDS_WEIGHTS)
        if residuals is not None:
            raise ValueError(
                "strategy 'oyama2017' has no error feedback: leave residuals out, or"
                " give strategy='two_roundings'"
            )
        of_array = _flat([weights], "weights", shape)[0] if ratio else None
        if n_samples is not None:
            flat = [
                gradient * (share * np.float32(n_replicas))
                for gradient, share in zip(flat, shares(n_samples, n_replicas))
            ]
        mean, q, codes = oyama2017.mean(
            flat, of_array, local_size, settings, array, renewal
        )
        return ExchangeResult(mean.reshape(shape), sent, q, codes)
    if residuals is not None:
        if len(residuals) != n_replicas:
            raise ValueError(
                f"residuals must have an array for each of {n_replicas} replicas, not"
                f" {len(residuals)}"
            )
        flat = [g + r for g, r in zip(flat, _flat(residuals, "residuals", shape))]
    # The mean itself shows numbers that are not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = two_roundings.node_parts(flat, local_size, n_samples)
        mean, lost = two_roundings.mean_of_parts(parts, settings)
    kept = None
    if residuals is not None:
        # An update whose mean is not finite is skipped, so residuals stay.
        found = residuals
        if np.isfinite(mean).all():
            found = _residuals(lost, residuals, local_size, n_samples, block)
        kept = [np.array(residual).reshape(shape) for residual in found]
    return ExchangeResult(mean.reshape(shape), sent, residuals=kept)


def _residuals(
    lost: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
    local_size: int,
    n_samples: Sequence[int] | None,
    block: int,
) -> list[np.ndarray]:
    """Returns for each replica the rounding errors of its own slice."""
    n_replicas = len(before)
    weights = shares(n_samples, n_replicas)
    of_own = [np.zeros_like(lost[0]) for _ in before]
    lanes = lanes_of(nodes_of(n_replicas, local_size))
    for lane, part in zip(lanes, slices_of(lost[0].size, block, len(lanes))):
        for of_node, replica in zip(lost, lane):
            of_own[replica][part] = of_node[part]
    return [
        two_roundings.residual(*each)
        for each in zip(of_own, weights, map(np.ravel, before))
    ]


def _flat(
    arrays: Sequence[np.ndarray], what: str, shape: tuple[int, ...] | None = None
) -> list[np.ndarray]:
    """Returns float32 arrays of one shape in one dimension."""
    if len(arrays) == 0:
        raise ValueError(f"{what} must have an array for each replica, at least one")
    shape = np.shape(arrays[0]) if shape is None else shape
    for number, array in enumerate(arrays):
        if getattr(array, "dtype", None) != np.float32:
            kind = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{what}[{number}] must be float32, not {kind}")
        if array.shape != shape:
            raise ValueError(f"{what}[{number}] is {array.shape}, not {shape}")
    return [np.ascontiguousarray(array).reshape(-1) for array in arrays]


def _check_local_size(local_size: int, n_replicas: int, settings: Settings) -> None:
    if local_size < 1:
        raise ValueError(f"local_size must be 1 or more, not {local_size}")
    sizes = {len(replicas) for replicas in nodes_of(n_replicas, local_size)}
    if settings.is_oyama2017 and len(sizes) > 1:
        raise ValueError(
            f"strategy 'oyama2017' needs as many replicas on each node: {n_replicas}"
            f" are no multiple of local_size = {local_size}"
        )


def _sent_bytes(n: int, n_replicas: int, local_size: int, settings: Settings) -> int:
    """Returns the bytes that the replica with the most traffic sends to other nodes."""
    nodes = nodes_of(n_replicas, local_size)
    if len(nodes) == 1:
        return 0
    # Without blocks, slices may end anywhere.
    block = 1 if settings.wire.name == "fp32" else settings.block
    sent = [0] * n_replicas
    lanes = lanes_of(nodes)
    for lane, share in zip(lanes, slices_of(n, block, len(lanes))):
        parts = slices_of(share.stop - share.start, block, len(nodes))
        counts = [part.stop - part.start for part in parts]
        sizes = counts
        if not settings.is_oyama2017:
            # Sizes include the scales.
            sizes = [settings.wire.n_bytes(n, block) for n in counts]
        for replica, own in zip(lane, sizes):
            # The replica sends the parts of others, and its own sum to each of them.
            sent[replica] += sum(sizes) - own + (len(nodes) - 1) * own
    return max(sent)
