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


class Exchange(OneByOne):
    """Averages arrays over ranks.

    The arrays go in buckets, and those in chunks, so that coding, messages and sums
    overlap. What a chunk does is

    ::

        rank 0   encode --.                       .--> decode
        rank 1   encode --+-- decode, add up in --+--> decode      the same bits
        rank 2   encode --'   float32, encode     '--> decode

    and between nodes of several ranks only after a sum within each, in float32. Each
    rank adds up a part of the chunk. All methods but :meth:`look` and :meth:`serialize`
    are to be called on all ranks, in the same order.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        exchange_dtype (str): As of :func:`~data_parallel.simulate_exchange`.
        strategy (str): Likewise.
        local_size (int): How many ranks, one after the other, share a node; ``None``
            for the ranks of each host.
        block (int): How many elements have a scale; a multiple of 16.
        bucket_bytes (int): Of the arrays, in float32, that are exchanged together. An
            array is never cut: a larger one is a bucket of its own.
        chunk_bytes (int): Of a bucket, in float32, that are under way together;
            ``None`` for 4 MiB.
        minimum (int): Buckets with fewer elements go in float32; ``None`` for what
            :func:`~data_parallel.measure_break_even` finds. It depends on the moment:
            give it where two runs must equal each other bit for bit.
        error_feedback (bool): Whether what the encodings of a rank have lost of an
            array is added to the next one at its position.
        rounding (str): As of :func:`~data_parallel.simulate_exchange`.
        quantile (float): Likewise.
        every (int): After how many exchanges the quantiles of ``'oyama2017'`` are taken
            anew.
        samples (int): As of :func:`~data_parallel.simulate_exchange`.
        epsilon (float): Likewise.
        seed (int): Likewise.
        timeout (float): Seconds that a wait for another rank may take.

    Attributes:
        comm (mpi4py.MPI.Comm): Of its own messages.
        nodes (list): The ranks of each node.
        sent_bytes (int): What this rank has sent to other nodes in the last exchange.
        spans (dict): Of the last exchange, or the one that goes on, by bucket: when it
            began and ended, of the clock of ``time.perf_counter``.
        seconds (dict): Of the last exchange, by ``'encode'``, ``'wire'``, ``'sum'`` and
            ``'decode'``; ``'wire'`` is what messages and waits took.

    Raises:
        DisagreementError: If the ranks' arguments differ, or those of another rank are
            wrong.
        TypeError, ValueError: If an argument is wrong.
        StallError: If another rank does not come.

    Example:
        >>> from mpi4py import MPI
        >>> with Exchange(MPI.COMM_WORLD, exchange_dtype="fp32") as exchange:
        ...     gradient = np.full(3, MPI.COMM_WORLD.rank, np.float32)
        ...     exchange.mean([gradient])
        >>> bool((gradient == (MPI.COMM_WORLD.size - 1) / 2).all())
        True
    """

    def __init__(
        self,
        comm: Any,
        *,
        exchange_dtype: str = "int8",
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
            seed=seed,
        )
        options = Options(
            local_size=local_size,
            bucket_bytes=bucket_bytes,
            chunk_bytes=chunk_bytes,
            minimum=minimum,
            error_feedback=error_feedback,
            every=every,
            timeout=timeout,
        )
        # First of all: others may wait already for a rank that fails here.
        abort_on_error()
        own, self.nodes = agree_on_start(comm, settings, options, self)
        if len(self.nodes) == 1 and not settings.is_oyama2017:
            # Nothing leaves the node, and nothing is rounded.
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
        super().__init__(ranks, settings, layouts, strategy, kept)

    @property
    def minimum(self) -> int:
        """From how many elements on a bucket is coded, as measured or given."""
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
            arrays: Of float16, float32 or float64, the same shapes and dtypes on all
                ranks; NumPy's, or CuPy's on one GPU, which codes them in the order of
                CuPy's current stream. On the wire they have float32 at most. An array
                with infinity or NaN on any rank has one on all, and is NaN as a whole
                if it is coded in two roundings; the others are not touched by it.
            weights: For ``'oyama2017'`` the weights, of the arrays' shapes.
            n_samples (int): Of this rank's minibatch, for a mean weighted by them;
                ``None`` if all are alike.
            exempt: The positions of arrays that keep float32 on the wire.

        Raises:
            DisagreementError: If the ranks' arguments differ, or those of another rank
                are wrong.
            TypeError, ValueError: If an argument is wrong.
            StallError: If another rank does not come.
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
        """Begins what :meth:`mean` does.

        The arrays may not be used before :meth:`finish`, nor the weights changed.

        Args:
            arrays: As of :meth:`mean`.
            weights: Likewise.
            n_samples: Likewise.
            exempt: Likewise.
        """
        given: list[np.ndarray] = []

        def specs() -> tuple[Spec, ...]:
            # May fail itself, where arrays are none.
            given.extend(arrays)
            return specs_of(given, exempt)

        self.begin(specs, weights, n_samples)
        for i, array in enumerate(given):
            self.put(i, array)
        self.look()

    @property
    def is_needed(self) -> bool:
        """Whether means may differ from the arrays: on one rank most do not."""
        return self.comm.size > 1 or self._strategy.changes_own

    @property
    def copying(self) -> str:
        """The argument by which arrays are copied; empty if there is none."""
        return self._strategy.copying

    @property
    def uses_weights(self) -> bool:
        """Whether weights are looked at until the exchange is over."""
        return self._strategy.uses_weights

    def scale_residuals(self, factor: float) -> None:
        """Multiplies what error feedback keeps, when gradients are scaled otherwise."""
        if self._strategy.residuals is not None:
            self._strategy.residuals.scale(factor)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes what the next exchanges depend on.

        That is the smallest bucket that is coded, if it was measured, the quantiles,
        and what error feedback keeps of this rank. Each rank has a snapshot of its own,
        then; another number of ranks shares out the mean.

        Raises:
            RuntimeError: If an exchange has begun and is not finished.
        """
        self._current.check_over("save or load")
        self.kept.serialize(serializer)

    def serialize_arrays(self, serializers: Mapping[str, Any]) -> None:
        """Does as :meth:`serialize`, by the name of an array where its part goes."""
        self._current.check_over("save or load")
        self.kept.serialize_arrays(serializers)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # With an error the other ranks may not come.
        if kind is None:
            self.close()


def measure_break_even(comm: Any, exchange_dtype: str) -> int | None:
    """Measures from how many elements on a wire dtype beats float32 between ranks.

    It takes a second or two at the first call for a communicator and a wire dtype; then
    the answer is known. A call of all ranks.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        exchange_dtype (str): As of :class:`Exchange`.

    Returns:
        int or None: Elements of a bucket; ``None`` if it is not faster for any that was
        tried.

    Raises:
        StallError: If another rank does not come.

    Example:
        >>> from mpi4py import MPI
        >>> measure_break_even(MPI.COMM_SELF, "int8") is None
        True
    """
    return break_even.between(as_mpi(comm), exchange_dtype, None, TIMEOUT, Exchange)
