"""Runs with fewer ranks than they should have, whose hosts may come back.

::

    2 of 4 ranks train --> b is asked, every minute --> b answers --> the ranks stop
         ^                                                            with a snapshot
         '----------------------- 4 ranks start <------------------------------'
"""

from __future__ import annotations

import threading
import time

from pipeline.supervision.fleet import Fleet
from pipeline.supervision.launching import Placement
from pipeline.supervision.orders import Orders
from pipeline.training.control_files import Order

#: Seconds between two looks for hosts that are back.
SECONDS_BETWEEN_LOOKS = 60.0


class Growth:
    """Looks for hosts that are back, while ranks train.

    Args:
        fleet: The hosts of the run.
        orders: The orders to the run; ``None`` if the ranks cannot be asked to stop.
        is_wanted: Whether to look for hosts from time to time.

    Attributes:
        is_under_way: Whether the ranks were asked to stop so that more can start.
    """

    def __init__(self, fleet: Fleet, orders: Orders | None, is_wanted: bool) -> None:
        self._fleet, self._orders, self._is_wanted = fleet, orders, is_wanted
        # The hosts that did not answer a look; empty while it is under way.
        self._look: list[set[str]] | None = None
        self._given: list[Order] = []
        self._now: Placement | None = None
        self._next_look = 0.0
        self.is_under_way = False

    def begin(self, now: Placement) -> None:
        """Starts to look, for ranks that have just been placed."""
        self._now, self.is_under_way = now, False
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def ask(self, order: Order | None = None) -> None:
        """Looks at once, also at hosts on which ranks were killed.

        Args:
            order: The order to answer, if there is one.
        """
        if order is not None:
            self._given.append(order)
        self._fleet.forgive()
        self._next_look = 0.0

    def poll(self) -> None:
        """Begins a look if it is time, and draws the conclusion from one that ended."""
        if self._look is None:
            is_short = self._now.n_ranks < self._fleet.n_ranks
            is_due = self._given or (self._is_wanted and is_short)
            if is_due and time.monotonic() >= self._next_look:
                self._look = []
                busy = {host.name for host in self._now.hosts}
                # A daemon, so that no run waits for it at its end.
                threading.Thread(
                    target=_look, args=(self._fleet, busy, self._look), daemon=True
                ).start()
        elif self._look:
            (self._fleet.out_of_reach,) = self._look
            self._look = None
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
            self._conclude()

    def _conclude(self) -> None:
        there = self._fleet.place()
        is_larger = there is not None and there.n_ranks > self._now.n_ranks
        if not is_larger:
            why = self._fleet.missing() or "no host is left over"
            text = f"goes on with {self._now}: {why}"
        elif self._orders is None or not self._orders.is_obeyed:
            text = f"the ranks read no orders; the next restart has {there}"
        else:
            text = f"the ranks stop with a snapshot, and start again as {there}"
            self._orders.stop_ranks()
            self.is_under_way = True
        for order in self._given:
            self._orders.answer(order, text)
        self._given = []


def _look(fleet: Fleet, busy: set[str], found: list[set[str]]) -> None:
    found.append(fleet.silent(busy))
