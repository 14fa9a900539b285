"""Layers that are read by others: carried states and running averages."""

from typing import NamedTuple

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, carry_state
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.layers import load_model, load_shares, model_arrays


class _Ranks(NamedTuple):
    """What of :class:`pipeline.calls.ranks.Ranks` is read."""

    replica: int
    n_replicas: int


class _Recurrent(chainer.Chain):
    def __init__(self, state=None):
        super().__init__()
        self.h = None
        carry_state(self, "h", axis=1)
        self.carried_h = state


def _saved(*states):
    """Returns what replicas with these states have saved."""
    each = [model_arrays(Divisible(_Recurrent(state))) for state in states]
    return [Arrays({"memory": arrays}) for arrays in each]


def _loaded(saved, ranks, is_dry_run=False):
    stage = Divisible(_Recurrent())
    load_shares(stage, saved, ranks, is_dry_run)
    return stage[0].carried_h


@pytest.mark.parametrize("n_replicas", [1, 4])
def test_samples_are_shared_out_in_their_order(n_replicas):
    state = np.arange(16, dtype=np.float32).reshape(2, 8)
    saved = _saved(state[:, :4], state[:, 4:])
    shares = [_loaded(saved, _Ranks(i, n_replicas)) for i in range(n_replicas)]
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), state)


def test_a_state_that_was_not_there_yet_is_not_there_afterwards():
    # As of a run that was saved before its first minibatch, or after reset_states().
    assert _loaded(_saved(None), _Ranks(1, 2)) is None
    assert _loaded(_saved(None, np.ones((2, 4), np.float32)), _Ranks(0, 1)) is None


def test_a_dry_run_changes_nothing_but_refuses():
    saved = _saved(np.ones((2, 4), np.float32))
    assert _loaded(saved, _Ranks(0, 2), is_dry_run=True) is None
    with pytest.raises(SnapshotError, match=r"/0\.h was carried by 4 samples"):
        _loaded(saved, _Ranks(0, 3), is_dry_run=True)


def test_running_averages_are_of_the_shape_of_their_layer():
    x = np.ones((4, 3), np.float32)

    def build():
        return Divisible(L.BatchNormalization(axis=0), L.BatchNormalization(3))

    model = build()
    model(x)
    saved = {f"model/{key}": value for key, value in model_arrays(model).items()}
    found = Arrays({"memory": saved}, "model/", is_dry_run=True)
    load_model(build(), found)
    assert found.ledger.unlike == []
    for name in ("avg_mean", "avg_var"):
        for layer in range(2):
            cut = {**saved, f"model/{layer}/{name}": np.zeros(2, np.float32)}
            found = Arrays({"memory": cut}, "model/", is_dry_run=True)
            load_model(build(), found)
            words = found.ledger.unlike
            assert words and f"{layer}/{name} was saved with shape (2,)" in words[0]
            assert "(3,)" in words[0]
