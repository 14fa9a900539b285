"""What is saved beside a parameter is refused in another shape than the parameter's."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import MixedPrecision, MomentumSGD16, to_float16
from model_compression import Compress, CompressionPlan, Prune
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.layer_state import load_model, model_arrays
from pipeline.snapshots.optimizer_state import load_optimizer, optimizer_arrays

OPTIMIZERS = {
    name: getattr(chainer.optimizers, name)
    for name in (
        "AdaDelta",
        "AdaGrad",
        "Adam",
        "AMSGrad",
        "CorrectedMomentumSGD",
        "MomentumSGD",
        "MSVAG",
        "NesterovAG",
        "RMSprop",
        "RMSpropGraves",
        "SMORMS3",
    )
}


def trained(make, half=False, in_float32=False):
    """Returns an optimizer with a pruned model, after an update."""
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(4, 6), L.Linear(6, 2))
    if half or in_float32:
        to_float16(model)
    optimizer = MixedPrecision(make(), 1.0) if half else make()
    if in_float32:
        optimizer.use_fp32_update()
    optimizer.setup(model)
    Compress(CompressionPlan([Prune("l1", "/0", 0.5)]), optimizer).advance(1, 0.0)
    x = np.ones((2, 4), model[0].W.dtype)
    loss = chainer.functions.sum(chainer.functions.cast(model(x), np.float32))
    loss.backward(loss_scale=1.0 if half else None)
    optimizer.update()
    return optimizer


def unlike(make, arrays, is_dry_run, **options):
    """Returns what is noted when an optimizer loads some arrays."""
    read = Arrays({"memory": arrays}, is_dry_run=is_dry_run)
    load_optimizer(trained(make, **options), read)
    return read.ledger.unlike


@pytest.mark.parametrize(
    "make, options",
    [
        *((make, {}) for make in OPTIMIZERS.values()),
        (chainer.optimizers.Adam, {"half": True}),
        (MomentumSGD16, {"half": True}),
        (chainer.optimizers.MomentumSGD, {"in_float32": True}),
    ],
)
@pytest.mark.parametrize("is_dry_run", [True, False])
def test_each_array_of_a_parameter_is_of_its_shape(make, options, is_dry_run):
    arrays = optimizer_arrays(trained(make, **options))
    assert unlike(make, dict(arrays), is_dry_run, **options) == []
    shapes = {"0/W": (6, 4), "0/b": (6,), "1/W": (2, 6), "1/b": (2,)}
    n_cut = 0
    for key, array in arrays.items():
        path = "/".join(key.split("/")[:2])
        if shapes.get(path) == array.shape and array.dtype.kind in "fb":
            cut = {**arrays, key: array[:1]}
            (words,) = unlike(make, cut, is_dry_run, **options)
            assert key in words and str(array.shape) in words
            assert str(array[:1].shape) in words
            n_cut += 1
    # The mask, and of each parameter what the rule keeps.
    rule = make().create_update_rule()
    rule._state = {}
    rule.init_state(chainer.Parameter(np.zeros((2, 2), np.float32)))
    assert n_cut >= 1 + 4 * len(rule._state)


class Factored(chainer.optimizers.SGD):
    """An optimizer whose rule keeps sums of rows, and a number."""

    def create_update_rule(self):
        return FactoredRule(self.hyperparam)


class FactoredRule(chainer.optimizers.sgd.SGDRule):
    def init_state(self, param):
        self.state["rows"] = np.zeros(param.shape[:1], np.float32)
        self.state["count"] = np.zeros(1, np.float32)


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_a_rule_of_a_users_own_may_keep_other_shapes(is_dry_run):
    arrays = optimizer_arrays(trained(Factored))
    assert unlike(Factored, arrays, is_dry_run) == []


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
