"""Runs that are killed again and again end as one that nobody disturbed.

``make test-kills KILLS=200``; ``SEED=`` repeats what a failure has printed, as far as
signals at the same moment do the same.
"""

from __future__ import annotations

import os

import pytest

from tests.support.killed_training import N_ITERATIONS, check_kills, finish
from tests.support.snapshot_training import small_trainer


def train(comm, out):
    trainer, _ = small_trainer(comm, out, (N_ITERATIONS, "iteration"))
    finish(comm, trainer)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:a snapshot is passed over")
def test_killed_again_and_again(tmp_path):
    check_kills(train, tmp_path, int(os.environ.get("KILLS") or 5))
