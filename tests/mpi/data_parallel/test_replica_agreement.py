"""Replicas are the same model with the same values, or are told of."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.optimizer_hooks import WeightDecay

from divisible.communication.errors import DisagreementError
from mixed_precision import MixedPrecision, to_float16
from model_compression import Compress, CompressionPlan, Prune
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    CODED,
    assert_alike,
    make_batches,
    make_model,
    read,
    replicate,
    values_of,
    written,
)


def different_values(comm):
    model = make_model(seed=comm.rank)
    optimizer = replicate(comm, model)
    (x, t), *_ = make_batches(1, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update(model, x, t)
    texts = [str(w.message) for w in caught if "differ between" in str(w.message)]
    assert len(texts) == (comm.rank == 0)
    assert all("/predictor/0/W on rank 1" in text for text in texts)
    # Their gradients were those of other weights.
    assert optimizer.t == 0
    assert values_of(model) == values_of(make_model(seed=0))
    optimizer.update(model, x, t)
    assert optimizer.t == 1
    optimizer.close()


def test_replicas_that_differ_get_the_values_of_rank_0():
    assert_on_ranks(2, different_values)


def unlike(comm, what):
    """Makes something differ on rank 1, and returns what the refusal must say."""
    model, inner, hooks = make_model(), optimizers.MomentumSGD(0.1), []
    differs = comm.rank == 1
    if what == "name" and differs:
        model.add_param("more", (2,), initializer=0)
    if what == "shape" and differs:
        model.predictor[2].b.array = np.zeros(6, "f")
    if what == "dtype" and differs:
        model.predictor[2].b.array = np.zeros(5, "d")
    if what == "hyperparameter" and differs:
        inner.lr = 0.2
    if what == "optimizer" and differs:
        inner = optimizers.SGD(0.1)
    if what == "hook":
        hooks = [WeightDecay(0.1 * (1 + differs))]
    if what == "rule" and differs:
        optimizer = replicate(comm, model, inner)
        model.predictor[2].b.update_rule.hyperparam.lr = 0.3
        return model, optimizer
    return model, replicate(comm, model, inner, hooks)


REFUSALS = {
    "name": "/more",
    "shape": r"/predictor/1/b of \(5,\)",
    "dtype": "/predictor/1/b of .* float32",
    "hyperparameter": "lr=0.1 of MomentumSGD, but rank 1 has lr=0.2",
    "optimizer": "MomentumSGD",
    "hook": "rate=0.1 of WeightDecay, but rank 1 has rate=0.2",
    "rule": "lr=0.3 of the update rule of /predictor/1/b",
}


def refused(comm):
    for what, text in REFUSALS.items():
        model, optimizer = unlike(comm, what)
        before = values_of(model)
        with pytest.raises(DisagreementError, match=text):
            optimizer.update()
        assert values_of(model) == before
        optimizer.close()


def test_replicas_of_unlike_models_are_refused_by_name():
    assert_on_ranks(2, refused)


def drifting(comm):
    model = make_model()
    optimizer = replicate(comm, model, check_every=3)
    for i, (x, t) in enumerate(make_batches(4, 4)):
        if i == 3:
            with pytest.raises(DisagreementError, match="number 4 1 of 4 .*/1/W: on r"):
                optimizer.update(model, x, t)
            break
        optimizer.update(model, x, t)
        if i == 1 and comm.rank == 1:
            model.predictor[2].W.array[0, 0] += 1e-3
    optimizer.close()


def test_replicas_that_drift_apart_are_noticed():
    assert_on_ranks(2, drifting)


def lazily_initialized(comm):
    """Compares replicas again when a parameter gets its shape."""
    np.random.seed(comm.rank)
    model = chainer.Sequential(L.Linear(None, 4), L.Linear(None, 3))
    optimizer = replicate(comm, model)
    x = np.ones((2, 5), "f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.update(lambda: F.sum(model(x)))
        assert optimizer.t == 0
    optimizer.update(lambda: F.sum(model(x)))
    assert optimizer.t == 1
    assert_alike(comm, model)
    optimizer.close()


def test_parameters_may_be_initialized_late():
    assert_on_ranks(2, lazily_initialized)


def trained(comm, make_inner=optimizers.MomentumSGD, half=False, n_steps=3, **options):
    """Returns a model and its optimizer after some updates, alike on all ranks."""
    model = make_model()
    if half:
        to_float16(model)
    optimizer = replicate(comm, model, make_inner(), **options)
    for x, t in make_batches(n_steps, 4):
        train(model, optimizer, x, t)
    return model, optimizer


def train(model, optimizer, x, t):
    if model.predictor[0].W.dtype == np.float16:
        x = x.astype(np.float16)

    def loss():
        return F.softmax_cross_entropy(F.cast(model.predictor(x), "f"), t)

    optimizer.update(loss)


def next_update(optimizer, model):
    (x, t), *_ = make_batches(1, 4)
    train(model, optimizer, x, t)


def mixed():
    return MixedPrecision(optimizers.Adam(), loss_scale=64)


def only_one_loads(comm, make_inner, half, options):
    """Rank 1 alone goes on from a snapshot, with the weights that all have."""
    model, optimizer = trained(comm, make_inner, half, **options)
    snapshot = written(optimizer)
    again = make_model()
    if half:
        to_float16(again)
    again.copyparams(model)
    other = replicate(comm, again, make_inner(), **options)
    if comm.rank == 1:
        read(other, snapshot)
    return again, other


def only_one_loads_a_serial_file(comm):
    expected, model = make_model(), make_model()
    serial = optimizers.Adam().setup(expected)
    for x, t in make_batches(3, 4):
        train(expected, serial, x, t)
    model.copyparams(expected)
    optimizer = replicate(comm, model, optimizers.Adam())
    if comm.rank == 1:
        read(optimizer, written(serial))
    return model, optimizer


def state_changed_before_load(comm, change, make_inner=optimizers.Adam, **options):
    """All ranks load, but what rank 1 loads has been changed."""
    model, optimizer = trained(comm, make_inner, **options)
    state = chainer.serializers.DictionarySerializer({})
    optimizer.serialize(state)
    if comm.rank == 1:
        change(state.target)
    optimizer.serialize(chainer.serializers.NpzDeserializer(state.target))
    return model, optimizer


def add_to(key):
    def change(state):
        found = np.asarray(state[key])
        state[key] = found + found.dtype.type(1)

    return change


def mask_differs(comm):
    model, optimizer = make_model(), None
    optimizer = replicate(comm, model)
    plan = CompressionPlan([Prune("magnitude", layers="*", to=0.5)])
    compress = Compress(plan, optimizer)
    for path, param in model.namedparams():
        mask = optimizer._hookable._post_update_hooks["Masks"].state_of(path, param)
        if mask is not None and comm.rank == 1:
            # A pruned element that is zero on all ranks.
            param.array[(0,) * param.ndim] = 0
            mask.pruned[(0,) * param.ndim] = True
        elif mask is not None:
            param.array[(0,) * param.ndim] = 0
    assert compress is not None
    return model, optimizer


class Average:
    """A hook that keeps the mean of the weights."""

    name, timing = "Average", "post"

    def __init__(self, value):
        self.means = np.full(3, value, "f")

    def __call__(self, optimizer):
        pass

    def serialize(self, serializer):
        self.means = serializer("means", self.means)


def hook_differs(comm):
    model = make_model()
    return model, replicate(comm, model, hooks=[Average(1 + comm.rank)])


LATE = {"double_buffering": True}
W = "predictor/0/W"
STATES = {
    "momentum": lambda comm: only_one_loads(comm, optimizers.MomentumSGD, False, {}),
    "serial": only_one_loads_a_serial_file,
    "mixed precision": lambda comm: only_one_loads(comm, mixed, True, {}),
    "late": lambda comm: only_one_loads(comm, optimizers.SGD, False, LATE),
    "v": lambda comm: state_changed_before_load(comm, add_to(f"{W}/v")),
    "count": lambda comm: state_changed_before_load(comm, add_to(f"{W}/t")),
    "master": lambda comm: state_changed_before_load(
        comm, add_to(f"{W}/master"), mixed, half=True
    ),
    "mean": lambda comm: state_changed_before_load(
        comm, add_to(f"{W}/exchange/mean"), **LATE
    ),
    "mask": mask_differs,
    "hook": hook_differs,
}
COUNTS = "update number 1, but rank 1 has .* update number 4. .* load the same snapshot"
SAID = {
    "momentum": COUNTS,
    "serial": "t is 0 on rank 0, but 3 on rank 1, and ",
    "mixed precision": COUNTS,
    "late": COUNTS,
    "v": f"{W}/v on rank 1 is not that of rank 0. Load the same",
    "count": f"{W}/t is 3 on rank 0, but 4 on rank 1",
    "master": f"{W}/master on rank 1 is not that of rank 0",
    "mean": f"{W}/exchange/mean on rank 1 is not that of rank 0",
    "mask": f"{W}/hooks/Masks/pruned on rank 1 is not that of rank 0",
    "hook": "hooks/Average/means on rank 1 is not that of rank 0",
}


def states_refused(comm):
    for what, make in STATES.items():
        model, optimizer = make(comm)
        before = values_of(model)
        with pytest.raises(DisagreementError, match=SAID[what]):
            next_update(optimizer, model)
        assert values_of(model) == before, what


def test_replicas_whose_optimizers_have_different_states_are_refused():
    assert_on_ranks(2, states_refused)


def loaded_in_the_middle(comm):
    """One rank goes back to an earlier snapshot; the other has loaded nothing."""
    for options in ({}, LATE, {"overlap": True}):
        model, optimizer = trained(comm, **options)
        snapshot = written(optimizer)
        next_update(optimizer, model)
        if comm.rank == 1:
            read(optimizer, snapshot)
        words = "rank 0 has arrays to exchange, but rank 1 has replicas to compare"
        with pytest.raises(DisagreementError, match=words):
            next_update(optimizer, model)
            # With double buffering the exchange goes on until then.
            next_update(optimizer, model)


def test_a_load_of_one_replica_is_refused_on_all():
    assert_on_ranks(2, loaded_in_the_middle)


def loaded_alike(comm):
    """States of their own, such as residuals, are no difference."""
    for options in ({**CODED, "error_feedback": True}, LATE, {"overlap": True}):
        model, optimizer = trained(comm, mixed, half=True, **options)
        snapshot, t = written(optimizer), optimizer.t
        optimizer.epoch = comm.rank
        read(optimizer, snapshot)
        next_update(optimizer, model)
        assert optimizer.t == t + 1
        assert_alike(comm, model)
        optimizer.close()


def test_a_load_of_all_replicas_goes_on():
    assert_on_ranks(2, loaded_alike)


def counted(comm):
    """States are compared in the first update, and after a load, and then no more."""
    model, optimizer = trained(comm, n_steps=0, check_every=2)
    n_reads = []

    hook = Average(1)
    hook.serialize = lambda serializer: n_reads.append(1)
    optimizer.add_hook(hook)
    for _ in range(5):
        next_update(optimizer, model)
    assert len(n_reads) == 1
    read(optimizer, written(optimizer))
    next_update(optimizer, model)
    next_update(optimizer, model)
    assert len(n_reads) == 2
    optimizer.close()


def test_states_are_compared_at_first_and_after_a_load():
    assert_on_ranks(2, counted)
