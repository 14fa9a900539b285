"""An exchange whose arrays come one by one, as backward completes gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Callable

import numpy as np

from data_parallel.arrays import HOST, Arrays, Spec, common_device
from data_parallel.coder import MakeCode
from data_parallel.current import Current
from data_parallel.kept_state import KeptState
from data_parallel.layout import Layouts
from data_parallel.opening import Opening, check_any_samples, check_n_samples
from data_parallel.residuals import NOT_LOADED
from data_parallel.settings import Settings
from data_parallel.strategies import Strategy
from data_parallel.under_way import Ranks, UnderWay, compare
from data_parallel.units import PARTS
from divisible.communication.errors import DisagreementError
from divisible.communication.exit_notices import together


class OneByOne:
    """Averages arrays that are put one by one, over ranks.

    ::

        begin(specs) ---> put(2, ..), look(), put(0, ..), put(1, ..) ---> finish()

    An array is sent when its bucket is full. :class:`~data_parallel.Exchange` puts
    arrays that are all complete.

    Args:
        ranks (Ranks): Ranks that take part, and their messages.
        settings (Settings): Code of the numbers on the wire.
        layouts (Layouts): Buckets and chunks of the arrays.
        strategy: Maker of codes.
        kept (KeptState): State that one exchange leaves to the next.
        n_in_fp32 (int): Number of exchanges at the beginning that are in float32.

    Attributes:
        comm (mpi4py.MPI.Comm): Communicator of the exchange's messages.
        kept (KeptState): State that one exchange leaves to the next.
        sent_bytes (int): Bytes that this rank has sent to other nodes in the last
            exchange.
        spans (dict): Begin and end of each bucket, in the last exchange or the one that
            is under way, by the clock of ``time.perf_counter``.
        seconds (dict): Seconds of the last exchange, by ``'encode'``, ``'wire'``,
            ``'sum'`` and ``'decode'``; ``'wire'`` counts messages and waits.
    """

    def __init__(
        self,
        ranks: Ranks,
        settings: Settings,
        layouts: Layouts,
        strategy: Strategy,
        kept: KeptState,
        n_in_fp32: int,
    ) -> None:
        self.comm, self.kept = ranks.comm, kept
        self._ranks, self._settings = ranks, settings
        self._layouts, self._strategy = layouts, strategy
        self._n_in_fp32 = n_in_fp32
        self._current = Current(self.comm)
        self.sent_bytes, self.spans = 0, {}
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @property
    def timeout(self) -> float:
        """Seconds that a wait for another rank may take."""
        return self._ranks.timeout

    def begin(
        self,
        specs: Callable[[], tuple[Spec, ...]],
        weights: Sequence[np.ndarray] | None,
        n_samples: int | None,
        zero_fill: bool = True,
    ) -> None:
        """Begins an exchange.

        Args:
            specs: Returns the descriptions of the arrays, or raises an error to refuse
                the exchange.
            weights: Weights of the arrays' shapes, which ``'oyama2017'`` reads.
            n_samples: Number of samples in this rank's minibatch, for a weighted mean;
                ``None`` if all ranks have the same number.
            zero_fill: Whether zeros stand for an array that some ranks have not put.

        Raises:
            RuntimeError: If another exchange is under way, or none can begin any more.
            TypeError, ValueError: If an argument is wrong.
        """
        self._current.check_idle()
        refusal: Exception | None = None
        found: tuple[Spec, ...] = ()
        device = HOST
        # No code is made for an exchange that is refused.
        make_code: MakeCode | None = None
        try:
            found = specs()
            if self.kept.n_means < self._n_in_fp32:
                found = tuple(spec._replace(is_exempt=True) for spec in found)
            device = common_device(found) if self._settings.runs_on_gpu else HOST
            make_code = self._strategy.begin(found, device, weights)
            check_n_samples(n_samples)
        except (TypeError, ValueError) as error:
            refusal, n_samples = error, None
        if self._layouts.fit(found):
            # Other arrays need other buffers.
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

    def put(self, i: int, array: np.ndarray | None) -> None:
        """Adds an array to the exchange that has begun.

        Args:
            i (int): Position of the array among the descriptions.
            array: The array; ``None`` if this rank has none, then zeros stand for it.

        Raises:
            RuntimeError: If no exchange has begun.
        """
        self._current.running().put(i, array)

    def look(self) -> None:
        """Polls the messages of the exchange; to be called often."""
        if self._current.under_way is not None:
            with self._current.ending_at_errors():
                self._current.under_way.look()

    def finish(self) -> list[np.ndarray | None]:
        """Waits for the end of the exchange that has begun.

        Returns:
            The arrays; ``None`` for one that no rank has put.

        Raises:
            DisagreementError: If the ranks' arguments differ, or those of another rank
                are wrong.
            StallError: If another rank does not take part in time.
            RuntimeError: If no exchange has begun, or not all arrays have been put.
        """
        under_way = self._current.running()
        under_way.check_all_put()
        with self._current.ending_at_errors():
            under_way.finish()
        self._current.end()
        under_way.check_all_present()
        self.sent_bytes = under_way.clock.sent_bytes
        self.seconds = under_way.clock.seconds
        self._strategy.keep(under_way.is_finite, under_way.are_there())
        self.kept.n_means += 1
        return under_way.results()

    def refuse(self, error: TypeError | ValueError) -> None:
        """Refuses an exchange, and sends the reason to the other ranks.

        Args:
            error: The reason.

        Raises:
            TypeError, ValueError: The error, after the other ranks have received it.
        """

        def specs() -> tuple[Spec, ...]:
            raise error

        self.begin(specs, None, None)

    def compare(self, lines: Sequence[str]) -> None:
        """Checks that all ranks have the same lines of text.

        Args:
            lines: Descriptions of what this rank has, such as ``'lr=0.1 of SGD'``.

        Raises:
            DisagreementError: If they differ. The message has the first difference.
            StallError: If another rank does not call this in time.
            RuntimeError: If an exchange is under way.
        """
        self._current.check_idle()
        number = self.kept.n_exchanges
        self.kept.n_exchanges += 1
        opening = Opening(self.comm, number, lines, None, "", NOT_LOADED, self.timeout)
        with self._current.ending_at_errors(), together(self.comm):
            compare(opening)

    def leave_out(self, n_samples: int | None) -> None:
        """Counts an exchange that is left out, because :attr:`is_needed` is false.

        Args:
            n_samples: Number of samples; see :meth:`begin`.

        Raises:
            DisagreementError: If there are no samples.
            RuntimeError: If an exchange is under way, or none can begin any more.
            TypeError, ValueError: If an argument is wrong.
        """
        self._current.check_idle()
        self.kept.n_exchanges += 1
        if n_samples is not None:
            check_n_samples(n_samples)
            check_any_samples(n_samples)
        self.kept.n_means += 1

    def close(self) -> None:
        """Frees the communicator; a call of all ranks.

        Raises:
            RuntimeError: If an exchange has begun and is not finished.
        """
        self._current.free()
        self._ranks.buffers.clear()
