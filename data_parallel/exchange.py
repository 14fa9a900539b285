"""The mean of arrays over the ranks of a communicator, in few bits on the wire."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Callable

import numpy as np

from data_parallel import break_even
from data_parallel.arrays import HOST, Arrays, Spec, common_device, specs_of
from data_parallel.coder import MakeCode
from data_parallel.current import Current
from data_parallel.kept_state import KeptState
from data_parallel.layout import Layouts, Shape
from data_parallel.messages import Buffers
from data_parallel.nodes import lanes_of
from data_parallel.opening import Opening, check_any_samples, check_n_samples
from data_parallel.residuals import NOT_LOADED
from data_parallel.settings import Settings
from data_parallel.start import Options, agree_on_start
from data_parallel.strategies import strategy_of
from data_parallel.under_way import Ranks, UnderWay, compare
from data_parallel.units import PARTS, Placement
from divisible.communication.aborting import abort_on_error
from divisible.communication.collectives import as_mpi
from divisible.communication.errors import TIMEOUT, DisagreementError
from divisible.communication.farewells import together
from divisible.communication.wire import BLOCK


class Exchange:
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
        wire_dtype (str): As of :func:`~data_parallel.simulate_exchange`.
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
        >>> with Exchange(MPI.COMM_WORLD, "fp32") as exchange:
        ...     gradient = np.full(3, MPI.COMM_WORLD.rank, np.float32)
        ...     exchange.mean([gradient])
        >>> bool((gradient == (MPI.COMM_WORLD.size - 1) / 2).all())
        True
    """

    def __init__(
        self,
        comm: Any,
        wire_dtype: str = "int8",
        *,
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
            wire_dtype=wire_dtype,
            strategy=strategy,
            block=block,
            rounding=rounding,
            quantile=quantile,
            samples=samples,
            epsilon=epsilon,
            seed=seed,
        )
        self._options = Options(
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
        self.comm, self.nodes = agree_on_start(comm, settings, self._options, self)
        if len(self.nodes) == 1 and not settings.is_oyama2017:
            # Nothing leaves the node, and nothing is rounded.
            settings = settings._replace(wire_dtype="fp32")
        self._settings = settings
        self._ranks = Ranks(
            self.comm,
            Placement(self.nodes, self.comm.rank),
            lanes_of(self.nodes),
            Buffers(),
            timeout,
        )
        shape = Shape(
            len(self._ranks.lanes),
            len(self.nodes),
            block,
            *self._options.bucket_and_chunk(),
            break_even.minimum(comm, settings, local_size, timeout, minimum, Exchange),
        )
        self._layouts = Layouts(shape, is_fp32=settings.wire.name == "fp32")
        self._strategy = strategy_of(settings, self._options, self.comm, self.nodes)
        self.kept = KeptState(
            self.comm,
            self._layouts,
            minimum is None,
            self._strategy.residuals,
            self._strategy.quantiles,
        )
        self._current = Current(self.comm)
        self.sent_bytes, self.spans = 0, {}
        self.seconds = dict.fromkeys(PARTS, 0.0)

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

    def look(self) -> None:
        """Lets messages that have come move the exchange on; to be called often."""
        if self._current.under_way is not None:
            with self._current.ending_at_errors():
                self._current.under_way.look()

    def finish(self) -> list[np.ndarray | None]:
        """Waits for the end of what :meth:`start` began.

        Returns:
            The arrays; ``None`` for one that no rank has put.

        Raises:
            DisagreementError: As of :meth:`mean`.
            StallError: If another rank does not come.
            RuntimeError: If nothing has begun, or not all arrays have been put.
        """
        under_way = self._current.running()
        under_way.check_all_put()
        with self._current.ending_at_errors():
            under_way.finish()
        self._current.end()
        under_way.check_all_present()
        self.sent_bytes = under_way.clock.sent_bytes
        self.seconds = under_way.clock.seconds
        self._strategy.keep(under_way.is_finite)
        return under_way.results()

    def begin(
        self,
        specs: Callable[[], tuple[Spec, ...]],
        weights: Sequence[np.ndarray] | None,
        n_samples: int | None,
        zero_fill: bool = True,
    ) -> None:
        """Begins an exchange whose arrays come one after the other.

        Args:
            specs: Returns what they are; may raise to refuse the exchange.
            weights: As of :meth:`mean`.
            n_samples: Likewise.
            zero_fill: Whether zeros stand for an array that some ranks have not put.

        Raises:
            RuntimeError: If another has begun, or cannot begin any more.
            TypeError, ValueError: If an argument is wrong.
        """
        self._current.check_idle()
        refusal: Exception | None = None
        found: tuple[Spec, ...] = ()
        device = HOST
        # Of an exchange that is refused no code is made.
        make_code: MakeCode | None = None
        try:
            found = specs()
            device = common_device(found) if self._settings.runs_on_gpu else HOST
            make_code = self._strategy.begin(found, device, weights)
            check_n_samples(n_samples)
        except (TypeError, ValueError) as error:
            refusal, n_samples = error, None
        if self._layouts.fit(found):
            # Other buffers are needed now.
            self._ranks.buffers.clear(are_page_locked=device != HOST)
        arrays, buckets = Arrays(found, device), self._layouts.buckets
        opening = Opening(
            self.comm,
            self.kept.n_exchanges,
            self._layouts.summary,
            n_samples,
            str(refusal or ""),
            self._strategy.origin,
            self.timeout,
        )
        under_way = UnderWay(
            self._ranks, opening, arrays, buckets, make_code, zero_fill
        )
        self._current.begin(under_way)
        self.spans = under_way.spans
        self.kept.n_exchanges += 1
        if refusal is not None:
            with suppress(DisagreementError), self._current.ending_at_errors():
                under_way.finish()
            raise refusal

    def refuse(self, error: TypeError | ValueError) -> None:
        """Tells the other ranks, in an exchange, that this one cannot take part.

        Args:
            error: Says why.

        Raises:
            TypeError, ValueError: The error, when they know it.
        """

        def specs() -> tuple[Spec, ...]:
            raise error

        self.begin(specs, None, None)

    def put(self, i: int, array: np.ndarray | None) -> None:
        """Gives an array to the exchange that has begun.

        Args:
            i (int): Its position among the specs.
            array: ``None`` where this rank has none; zeros stand for it.

        Raises:
            RuntimeError: If nothing has begun.
        """
        self._current.running().put(i, array)

    def compare(self, lines: Sequence[str]) -> None:
        """Sees that all ranks have the same lines of text.

        Args:
            lines: Each a thing that a rank has, such as ``'lr=0.1 of SGD'``.

        Raises:
            DisagreementError: If they differ; it says where first.
            StallError: If another rank does not come.
            RuntimeError: If an exchange has begun.
        """
        self._current.check_idle()
        number = self.kept.n_exchanges
        self.kept.n_exchanges += 1
        opening = Opening(self.comm, number, lines, None, "", NOT_LOADED, self.timeout)
        with self._current.ending_at_errors(), together(self.comm):
            compare(opening)

    def leave_out(self, n_samples: int | None) -> None:
        """Counts an exchange that is not needed, as :attr:`is_needed` is false.

        Args:
            n_samples: As of :meth:`mean`.

        Raises:
            DisagreementError: If there are no samples.
            RuntimeError: If an exchange has begun, or cannot begin any more.
            TypeError, ValueError: If an argument is wrong.
        """
        self._current.check_idle()
        self.kept.n_exchanges += 1
        if n_samples is not None:
            check_n_samples(n_samples)
            check_any_samples(n_samples)

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

    @property
    def timeout(self) -> float:
        """Seconds that a wait for another rank may take."""
        return self._options.timeout

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

    def close(self) -> None:
        """Frees the communicator; a call of all ranks.

        Raises:
            RuntimeError: If an exchange has begun and is not finished.
        """
        self._current.free()
        self._ranks.buffers.clear()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # With an error the other ranks may not come.
        if kind is None:
            self.close()


def measure_break_even(comm: Any, wire_dtype: str) -> int | None:
    """Measures from how many elements on a wire dtype beats float32 between ranks.

    It takes a second or two at the first call for a communicator and a wire dtype; then
    the answer is known. A call of all ranks.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        wire_dtype (str): As of :class:`Exchange`.

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
    return break_even.between(as_mpi(comm), wire_dtype, None, TIMEOUT, Exchange)
