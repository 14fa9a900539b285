"""Drawn cases that have pairs of features with few cases so far."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from tests.composition.cases import Case
from tests.composition.drawing import draw
from tests.composition.features import FEATURES, features
from tests.composition.refusals import is_refused
from tests.composition.tally import LEAST, Tally


def rare_cases(tally: Tally, n: int, seeds: Sequence[int]) -> list[Case]:
    """Returns the cases that bring the most pairs nearer to their least number.

    Each is the best one, after those chosen before it. Cases that are refused bring
    none.

    Args:
        tally: Counts so far.
        n: Most cases.
        seeds: Seeds of the draws to choose from.
    """
    lacking = _lacking(tally)
    seeds = [seed for seed in seeds if not is_refused(draw(seed))]
    places = [[FEATURES.index(name) for name in features(draw(s))] for s in seeds]

    def gain(i: int) -> int:
        return int((lacking[np.ix_(places[i], places[i])] > 0).sum())

    # The gain of a draw only falls while others are chosen.
    heap = [(-gain(i), i) for i in range(len(seeds))]
    heapq.heapify(heap)
    chosen: list[Case] = []
    while heap and len(chosen) < n:
        _, i = heapq.heappop(heap)
        now = gain(i)
        if now == 0:
            continue
        if heap and now < -heap[0][0]:
            heapq.heappush(heap, (-now, i))
            continue
        lacking[np.ix_(places[i], places[i])] -= 1
        chosen.append(draw(seeds[i]))
    return chosen


def _lacking(tally: Tally) -> np.ndarray:
    """Returns how many cases each pair lacks, as a symmetric matrix."""
    lacking = np.full((len(FEATURES), len(FEATURES)), LEAST)
    for pair, count in tally.counts.items():
        first, second = map(FEATURES.index, pair)
        # For a refusal, one case is enough.
        has = LEAST if count.refused else count.right
        lacking[first, second] = lacking[second, first] = LEAST - has
    return lacking
