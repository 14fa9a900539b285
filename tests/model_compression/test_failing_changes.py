"""A model that was changed in part is never taken for a good one."""

import contextlib
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from mixed_precision import MixedPrecision, float32_loss, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from pipeline import Pipeline, save_snapshot
from tests.support.matrix import matrix

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float16)
T = np.arange(8, dtype=np.int32) % 2
PLAN = CompressionPlan(
    [
        Prune("l2", layers=["/0", "/3"], to=0.5, granularity="channel"),
        Prune("magnitude", layers="/5", to=0.5, begin=(9, "iteration")),
        Quantize("codebook3", layers="/3"),
    ]
)


class Run:
    """A run in float16 after an update.

    Args:
        is_pruned: Whether channels are zero, and may go.
    """

    def __init__(self, is_pruned):
        np.random.seed(0)
        model = Divisible(
            L.Linear(4, 6),
            L.BatchNormalization(6, use_gamma=False),
            F.relu,
            L.Linear(6, 5),
            F.relu,
            L.Linear(5, 2),
        )
        self.stage = to_float16(model.divide())
        adam = chainer.optimizers.Adam(0.05)
        self.optimizer = MixedPrecision(adam, loss_scale=8.0).setup(self.stage)
        self.pipe = Pipeline(
            self.stage,
            MPI.COMM_SELF,
            n_microbatches=2,
            lossfun=float32_loss(F.softmax_cross_entropy),
            loss_scale=8.0,
        )
        self.compress = Compress(PLAN, self.optimizer, pipeline=self.pipe)
        self.pipe.step(X, T)
        self.optimizer.update()
        if is_pruned:
            self.compress.advance(1, 0.0)

    def arrays(self):
        """Returns all that belongs to the model and its training, by name."""
        found = {}
        for path, param in self.stage.namedparams():
            found[path] = param.array
            for name, value in param.update_rule.state.items():
                found[f"{path}:{name}"] = value
        for path, link in self.stage.namedlinks():
            for name in ("avg_mean", "avg_var", "in_size", "out_size"):
                if hasattr(link, name):
                    found[f"{path}:{name}"] = np.array(getattr(link, name))
        found.update({f"{k}:master": v for k, v in self.optimizer.masters().items()})
        target = chainer.serializers.DictionarySerializer()
        self.compress.serialize(target)
        found.update(target.target)
        return {name: np.array(value) for name, value in found.items()}

    def is_refused(self, folder):
        """Whether nothing can be done with the model, and nothing saved."""
        for use in (
            lambda: save_snapshot(
                folder / "half", self.pipe, self.optimizer, state={"c": self.compress}
            ),
            lambda: self.pipe.step(X, T),
            lambda: self.compress.advance(9, 0.0),
            lambda: self.compress.shrink(),
            lambda: self.compress.serialize(chainer.serializers.DictionarySerializer()),
        ):
            with pytest.raises(RuntimeError, match="in part only|call failed on rank"):
                use()
        assert not (folder / "half").exists()
        return True


def are_equal(here, there):
    return here.keys() == there.keys() and all(
        here[k].shape == there[k].shape and here[k].tobytes() == there[k].tobytes()
        for k in here
    )


class Fails:
    """Lets the n-th call of any function within a block fail, C functions counted.

    Attributes:
        risky: The calls in which the model was refused for a while.
        n_calls: How many there were.
    """

    def __init__(self, calls, n=None, error=None):
        self._calls, self._n, self._error = calls, n, error
        self.n_calls, self.risky = 0, []

    def __call__(self, frame, event, argument):
        if event not in ("call", "c_call"):
            return
        self.n_calls += 1
        if self._calls.refusal is not None:
            self.risky.append(self.n_calls)
        if self.n_calls == self._n:
            sys.setprofile(None)
            raise self._error

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)


def change(run, is_pruned):
    """Takes channels away, or prunes and quantizes first."""
    if is_pruned:
        run.compress.shrink()
    else:
        run.compress.advance(1, 0.0)


@pytest.mark.parametrize(
    "is_pruned, error, each",
    [
        (True, MemoryError("no memory"), 19),
        (True, KeyboardInterrupt(), 31),
        (False, MemoryError("no memory"), 151),
        *matrix(
            (True, MemoryError("no memory"), 2),
            (True, KeyboardInterrupt(), 11),
            (False, MemoryError("no memory"), 23),
        ),
    ],
)
def test_no_half_model_is_taken_for_good(is_pruned, error, each, tmp_path):
    before, changed = Run(is_pruned).arrays(), Run(is_pruned)
    with Fails(changed.pipe.internals.ranks.calls) as counted:
        change(changed, is_pruned)
    after = changed.arrays()
    assert not are_equal(before, after)
    # Many calls from the first change to the last, and some of the others.
    start, end = counted.risky[0] - 5, counted.risky[-1] + 1
    tried = {*range(1, counted.n_calls, 43), *range(start, end, each)}
    counts = {"as before": 0, "refused": 0, "as after": 0}
    run = Run(is_pruned)
    for n in sorted({*tried, *range(end, end + 9)}):
        fails = Fails(run.pipe.internals.ranks.calls, n, error)
        with contextlib.suppress(type(error)), fails:
            change(run, is_pruned)
        try:
            here = run.arrays()
        except RuntimeError:
            assert run.is_refused(tmp_path)
            counts["refused"] += 1
            run = Run(is_pruned)
            continue
        assert are_equal(here, before) or are_equal(here, after), n
        counts["as before" if are_equal(here, before) else "as after"] += 1
        if run.pipe.internals.ranks.calls.has_failed or are_equal(here, after):
            run = Run(is_pruned)
    assert all(counts.values()), counts
