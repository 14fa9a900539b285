"""The mean of arrays over the ranks of a communicator, in few bits on the wire."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from data_parallel import break_even
from data_parallel.arrays import Spec, specs_of
from data_parallel.kept_state import KeptState
from data_parallel.layout import Layouts, Shape
from data_parallel.messages import Buffers
from data_parallel.nodes import lanes_of
from data_parallel.one_by_one import OneByOne
from data_parallel.settings import Settings
from data_parallel.start import Options, agree_on_start
from data_parallel.strategies import strategy_of
from data_parallel.under_way import Ranks
from data_parallel.units import Placement
from divisible.communication.aborting import abort_on_error
from divisible.communication.collectives import as_mpi
from divisible.communication.errors import TIMEOUT
from divisible.communication.wire import BLOCK
from divisible.keywords import names_keywords


class Exchange(OneByOne):
    """Averages arrays over ranks.

    Arrays are exchanged in buckets, and buckets in chunks, so that coding, messages and
    sums overlap. A chunk is exchanged so:

    ::

        rank 0   encode --.                       .--> decode
        rank 1   encode --+-- decode, add up in --+--> decode      the same bits
        rank 2   encode --'   float32, encode     '--> decode

    If nodes have several ranks, a sum within each node comes first, in float32. Each
    rank adds up a part of the chunk. Call all methods except :meth:`look` and
    :meth:`serialize` on all ranks, in the same order.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        exchange_dtype (str): Name of the dtype in which arrays are sent; see
            :func:`~data_parallel.simulate_exchange`. By default that of the strategy:
            ``'int8'``, and for ``'oyama2017'`` float32 first and then ``'fp8'``.
        strategy (str): ``'two_roundings'`` or ``'oyama2017'``; see
            :func:`~data_parallel.simulate_exchange`.
        local_size (int): Number of successive ranks of a node; ``None`` for the ranks
            of each host.
        block (int): Number of elements that share a scale; a multiple of 16.
        bucket_bytes (int): Bytes of the arrays of a bucket, in float32. Arrays are
            never cut: a larger one has its own bucket.
        chunk_bytes (int): Bytes of a bucket, in float32, that are sent together;
            ``None`` for 4 MiB.
        minimum (int): Least number of elements of a bucket that is coded; smaller ones
            are sent in float32. ``None`` for the result of
            :func:`~data_parallel.measure_break_even`, which varies between runs. Set it
            if two runs must be equal bit for bit.
        error_feedback (bool): Whether a rank's rounding errors of an array are added to
            the next array at its position.
        rounding (str): Rounding of ``'oyama2017'``; see
            :func:`~data_parallel.simulate_exchange`.
        quantile (float): Quantile of ``'oyama2017'`` that becomes the largest number of
            the range.
        every (int): Number of exchanges after which the quantiles of ``'oyama2017'``
            are computed again. Exchanges in float32 do not count.
        samples (int): Largest number of elements from which a quantile is computed.
        epsilon (float): Number that ``'oyama2017'`` adds to magnitudes of weights.
        ratio (bool): Whether ``'oyama2017'`` sends gradients relative to the weights;
            otherwise it sends the gradients themselves.
        fp32_first (int): Number of exchanges at the beginning that are in float32. By
            default 100 for ``'oyama2017'`` without ``exchange_dtype``, as in the paper,
            otherwise 0.
        seed (int): Seed of the choice of these elements. Each rank has choices of its
            own, for each array and each renewal.
        timeout (float): Seconds that a wait for another rank may take.

    Attributes:
        comm (mpi4py.MPI.Comm): Communicator of the exchange's messages.
        nodes (list): The ranks of each node.
        sent_bytes (int): Bytes that this rank has sent to other nodes in the last
            exchange.
        spans (dict): Begin and end of each bucket, in the last exchange or the one that
            is under way, by the clock of ``time.perf_counter``.
        seconds (dict): Seconds of the last exchange, by ``'encode'``, ``'wire'``,
            ``'sum'`` and ``'decode'``; ``'wire'`` counts messages and waits.

    Raises:
        DisagreementError: If the ranks' arguments differ, or those of another rank are
            wrong.
        TypeError, ValueError: If an argument is wrong.
        StallError: If another rank does not call this in time.

    Example:
        >>> from mpi4py import MPI
        >>> with Exchange(MPI.COMM_WORLD, exchange_dtype="fp32") as exchange:
        ...     gradient = np.full(3, MPI.COMM_WORLD.rank, np.float32)
        ...     exchange.mean([gradient])
        >>> bool((gradient == (MPI.COMM_WORLD.size - 1) / 2).all())
        True
    """

    @names_keywords
    def __init__(
        self,
        comm: Any,
        *,
        exchange_dtype: str | None = None,
        strategy: str = "two_roundings",
        local_size: int | None = None,
        block: int = BLOCK,
        bucket_bytes: int = 25 * 2**20,
        chunk_bytes: int | None = None,
        minimum: int | None = None,
        error_feedback: bool = False,
        rounding: str | None = None,
        quantile: float = 0.95,
        every: int = 100,
        samples: int = 1024,
        epsilon: float = 1e-5,
        ratio: bool = True,
        fp32_first: int | None = None,
        seed: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
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
        )
        options = Options(
            local_size=local_size,
            bucket_bytes=bucket_bytes,
            chunk_bytes=chunk_bytes,
            minimum=minimum,
            error_feedback=error_feedback,
            every=every,
            fp32_first=fp32_first,
            timeout=timeout,
        )
        # This comes first, because others may already wait for a rank that fails here.
        abort_on_error()
        own, self.nodes = agree_on_start(comm, settings, options, self)
        if len(self.nodes) == 1 and not settings.is_oyama2017:
            # No array leaves the node, so none is rounded.
            settings = settings._replace(exchange_dtype="fp32")
        ranks = Ranks(
            own,
            Placement(self.nodes, own.rank),
            lanes_of(self.nodes),
            Buffers(),
            timeout,
        )
        shape = Shape(
            len(ranks.lanes),
            len(self.nodes),
            block,
            *options.bucket_and_chunk(),
            break_even.minimum(comm, settings, local_size, timeout, minimum, Exchange),
        )
        layouts = Layouts(shape, is_fp32=settings.wire.name == "fp32")
        strategy = strategy_of(settings, options, own, self.nodes)
        kept = KeptState(
            own, layouts, minimum is None, strategy.residuals, strategy.quantiles
        )
        n_in_fp32 = options.n_in_fp32(settings)
        super().__init__(ranks, settings, layouts, strategy, kept, n_in_fp32)

    @property
    def minimum(self) -> int:
        """The least number of elements of a bucket that is coded, measured or given."""
        return self._layouts.shape.minimum

    def mean(
        self,
        arrays: Sequence[np.ndarray],
        *,
        weights: Sequence[np.ndarray] | None = None,
        n_samples: int | None = None,
        exempt: Collection[int] | None = None,
    ) -> None:
        """Replaces arrays by their means over the ranks.

        Args:
            arrays: Arrays of float16, float32 or float64, with the same shapes and
                dtypes on all ranks. They are NumPy's, or CuPy's on one GPU, which codes
                them in the order of CuPy's current stream. They are sent in float32 at
                most. If an array has infinity or NaN on any rank, its mean has it on
                all. With ``'two_roundings'`` a coded mean is then NaN as a whole. Other
                arrays are not affected.
            weights: Weights for the ratios of ``'oyama2017'``, of the arrays' shapes.
            n_samples (int): Number of samples of this rank's minibatch, for a weighted
                mean; ``None`` if all ranks have the same number.
            exempt: Positions of the arrays that are sent in float32.

        Raises:
            DisagreementError: If the ranks' arguments differ, or those of another rank
                are wrong.
            TypeError, ValueError: If an argument is wrong.
            StallError: If another rank does not call this in time.
        """
        self.start(arrays, weights=weights, n_samples=n_samples, exempt=exempt)
        self.finish()

    def start(
        self,
        arrays: Sequence[np.ndarray],
        *,
        weights: Sequence[np.ndarray] | None = None,
        n_samples: int | None = None,
        exempt: Collection[int] | None = None,
    ) -> None:
        """Begins to average arrays, like :meth:`mean`.

        Before :meth:`finish` the arrays must not be used, and the weights not changed.

        Args:
            arrays: Arrays; see :meth:`mean`.
            weights: Weights for ``'oyama2017'``; see :meth:`mean`.
            n_samples: Number of samples; see :meth:`mean`.
            exempt: Positions of the arrays that are sent in float32.
        """
        given: list[np.ndarray] = []

        def specs() -> tuple[Spec, ...]:
            # This raises an error if ``arrays`` is not a sequence.
            given.extend(arrays)
            return specs_of(given, exempt)

        self.begin(specs, weights, n_samples)
        for i, array in enumerate(given):
            self.put(i, array)
        self.look()

    @property
    def is_needed(self) -> bool:
        """Whether means may differ from the arrays; on one rank most do not."""
        return self.comm.size > 1 or self._strategy.changes_own

    @property
    def copying(self) -> str:
        """The argument for which arrays are copied; empty if there is none."""
        return self._strategy.copying

    @property
    def uses_weights(self) -> bool:
        """Whether weights are read until the end of the exchange."""
        return self._strategy.uses_weights

    def scale_residuals(self, factor: float) -> None:
        """Multiplies the residuals of error feedback, if the loss scale changes."""
        if self._strategy.residuals is not None:
            self._strategy.residuals.scale(factor)

    def serialize(self, serializer: Any) -> None:
        """Loads or saves the state for the next exchanges.

        The state has the smallest bucket that is coded, if it was measured, the
        quantiles, and this rank's residuals of error feedback. So each rank needs its
        own snapshot. Another number of ranks shares out the mean of the residuals.

        Raises:
            RuntimeError: If an exchange has begun and is not finished.
        """
        self._current.check_over("save or load")
        self.kept.serialize(serializer)

    def serialize_arrays(self, serializers: Mapping[str, Any]) -> None:
        """Loads or saves the state like :meth:`serialize`, by name of the array."""
        self._current.check_over("save or load")
        self.kept.serialize_arrays(serializers)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # After an error the other ranks may not call this.
        if kind is None:
            self.close()


def measure_break_even(comm: Any, exchange_dtype: str) -> int | None:
    """Measures from how many elements on a dtype is faster than float32 between ranks.

    The first call for a communicator and a dtype takes a second or two. Later calls
    return the same result. A call of all ranks.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        exchange_dtype (str): Name of the dtype; see :class:`Exchange`.

    Returns:
        int or None: Elements of a bucket; ``None`` if the dtype is not faster for any
        size that was measured.

    Raises:
        StallError: If another rank does not call this in time.

    Example:
        >>> from mpi4py import MPI
        >>> measure_break_even(MPI.COMM_SELF, "int8") is None
        True
    """
    return break_even.between(as_mpi(comm), exchange_dtype, None, TIMEOUT, Exchange)
