"""A run that was saved goes on bit for bit; one process."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from mpi4py import MPI

from divisible import Divisible
from mixed_precision import MixedPrecision, MomentumSGD16, to_float16
from model_compression import Compress, CompressionPlan, Prune
from pipeline import (
    Pipeline,
    SnapshotError,
    load_snapshot,
    repartition,
    save_snapshot,
)
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.optimizers import load_optimizer, optimizer_arrays
from tests.support.equivalence import make_batches
from tests.support.snapshot_training import names_in, state_of

BATCHES = make_batches([6, 6, 5, 6])

OPTIMIZERS = {
    "AdaDelta": optimizers.AdaDelta,
    "AdaGrad": optimizers.AdaGrad,
    "Adam": optimizers.Adam,
    "AMSGrad": optimizers.AMSGrad,
    "AdamW": optimizers.AdamW,
    "AdaBound": optimizers.AdaBound,
    "AMSBound": optimizers.AMSBound,
    "CorrectedMomentumSGD": optimizers.CorrectedMomentumSGD,
    "MomentumSGD": optimizers.MomentumSGD,
    "MSVAG": optimizers.MSVAG,
    "NesterovAG": optimizers.NesterovAG,
    "RMSprop": optimizers.RMSprop,
    "RMSpropGraves": optimizers.RMSpropGraves,
    "SGD": optimizers.SGD,
    "SMORMS3": optimizers.SMORMS3,
}


def make_run(optimizer, seed=1, dtype=np.float32):
    np.random.seed(seed)
    with chainer.using_config("dtype", dtype):
        stage = Divisible(L.Linear(6, 5), F.tanh, L.Linear(5, 4))
    optimizer.setup(stage)
    # With a scale, because Pipeline warns of float16 without one.
    return Pipeline(stage, MPI.COMM_SELF, n_microbatches=2, loss_scale=1), optimizer


def step(pipe, optimizer, i):
    x, t = BATCHES[i]
    for param in pipe.stages[0].params(include_uninit=False):
        x = x.astype(param.dtype)
    loss = pipe.step(x, t)["loss"]
    optimizer.update()
    return loss


def check_resuming(tmp_path, make_optimizer, dtype=np.float32, n_before=2):
    pipe, optimizer = make_run(make_optimizer(), dtype=dtype)
    for i in range(n_before):
        step(pipe, optimizer, i)
    save_snapshot(tmp_path / "1", pipe, optimizer)
    losses = [step(pipe, optimizer, i) for i in (2, 3)]
    resumed, its_optimizer = make_run(make_optimizer(), seed=2, dtype=dtype)
    step(resumed, its_optimizer, 0)
    load_snapshot(tmp_path / "1", resumed, its_optimizer)
    assert [step(resumed, its_optimizer, i) for i in (2, 3)] == losses
    expected, actual = state_of(pipe.stages[0]), state_of(resumed.stages[0])
    assert set(actual) == set(expected)
    for key in expected:
        np.testing.assert_array_equal(actual[key], expected[key], key)
        assert np.asarray(actual[key]).dtype == np.asarray(expected[key]).dtype, key
    assert vars(its_optimizer.hyperparam) == vars(optimizer.hyperparam)
    assert (its_optimizer.t, its_optimizer.epoch) == (optimizer.t, optimizer.epoch)


def test_every_optimizer_of_chainer_is_known():
    known = {
        name
        for name, value in vars(optimizers).items()
        if isinstance(value, type) and issubclass(value, chainer.GradientMethod)
    }
    assert known == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on(tmp_path, name):
    check_resuming(tmp_path, OPTIMIZERS[name])


def test_saved_before_the_first_update(tmp_path):
    check_resuming(tmp_path, optimizers.MomentumSGD, n_before=0)


def test_hyperparameters_of_any_kind(tmp_path):
    # NumPy's numbers compute in another precision than Python's.
    check_resuming(tmp_path, lambda: optimizers.MomentumSGD(np.float64(0.1)))
    pipe, optimizer = make_run(optimizers.MomentumSGD(0.1))
    optimizer.lr = np.float32(0.025)
    weight = pipe.stages[0][2].W
    weight.update_rule.hyperparam.momentum = 0.5
    save_snapshot(tmp_path / "2", pipe, optimizer)
    pipe, optimizer = make_run(optimizers.MomentumSGD(0.1))
    load_snapshot(tmp_path / "2", pipe, optimizer)
    assert optimizer.lr == np.float32(0.025) and type(optimizer.lr) is np.float32
    first, weight = pipe.stages[0][0].W, pipe.stages[0][2].W
    assert first.update_rule.hyperparam.momentum == 0.9
    assert weight.update_rule.hyperparam.momentum == 0.5


def test_float32_copies_and_dynamic_loss_scale(tmp_path):
    def make_optimizer():
        optimizer = optimizers.MomentumSGD(0.1)
        optimizer.use_fp32_update()
        optimizer.loss_scaling(interval=2)
        return optimizer

    pipe, optimizer = make_run(make_optimizer(), dtype=np.float16)
    for i in range(2):
        step(pipe, optimizer, i)
    optimizer._loss_scale, optimizer._loss_scaling_isnan_ever = 12.5, True
    save_snapshot(tmp_path / "1", pipe, optimizer)
    resumed, its_optimizer = make_run(make_optimizer(), 2, np.float16)
    load_snapshot(tmp_path / "1", resumed, its_optimizer)
    assert its_optimizer._loss_scale == 12.5 and its_optimizer._loss_scaling_isnan_ever
    for param, other in zip(pipe.stages[0].params(), resumed.stages[0].params()):
        copy, restored = (p.update_rule._fp32_param.array for p in (param, other))
        assert restored.dtype == np.float32 and (restored == copy).all()
        assert (copy != param.array).any()


class Counting:
    """A hook with a state, of the whole optimizer or for each parameter."""

    name = "Counting"

    def __init__(self, for_each):
        self.call_for_each_param = for_each
        self.n_calls = 0

    def __call__(self, *_):
        self.n_calls += 1

    def serialize(self, serializer):
        self.n_calls = serializer("n_calls", self.n_calls)


@pytest.mark.parametrize("for_each", [False, True])
def test_hooks_with_a_state(tmp_path, for_each):
    pipe, optimizer = make_run(optimizers.SGD())
    hook = Counting(for_each)
    optimizer.add_hook(hook)
    step(pipe, optimizer, 0)
    save_snapshot(tmp_path / "1", pipe, optimizer)
    pipe, optimizer = make_run(optimizers.SGD())
    restored = Counting(for_each)
    optimizer.add_hook(restored)
    load_snapshot(tmp_path / "1", pipe, optimizer)
    assert restored.n_calls == hook.n_calls == (4 if for_each else 1)


def test_layers_that_have_no_shape_yet(tmp_path):
    def run():
        stage = Divisible(L.Linear(None, 5), L.Linear(None, 4))
        return Pipeline(
            stage, MPI.COMM_SELF, n_microbatches=2
        ), optimizers.Adam().setup(stage)

    pipe, optimizer = run()
    save_snapshot(tmp_path / "before", pipe, optimizer)
    step(pipe, optimizer, 0)
    save_snapshot(tmp_path / "after", pipe, optimizer)
    resumed, its_optimizer = run()
    load_snapshot(tmp_path / "before", resumed, its_optimizer)
    assert resumed.stages[0][0].W.array is None
    load_snapshot(tmp_path / "after", resumed, its_optimizer)
    assert step(resumed, its_optimizer, 1) == step(pipe, optimizer, 1)


def check_refused(tmp_path, pipe, optimizer, match, state=None):
    with pytest.raises(SnapshotError, match=match):
        load_snapshot(tmp_path / "1", pipe, optimizer, state=state)


def test_what_does_not_fit_is_refused(tmp_path):
    pipe, optimizer = make_run(optimizers.MomentumSGD())
    step(pipe, optimizer, 0)
    save_snapshot(tmp_path / "1", pipe, optimizer)
    check_refused(tmp_path, *make_run(optimizers.Adam()), "has no 0/[bW]/m")

    wider = Divisible(L.Linear(6, 7), F.tanh, L.Linear(7, 4))
    sgd = optimizers.MomentumSGD().setup(wider)
    pipe = Pipeline(wider, MPI.COMM_SELF, n_microbatches=2)
    check_refused(tmp_path, pipe, sgd, r"0/[bW] was saved with shape \(5")

    half = make_run(optimizers.MomentumSGD(), dtype=np.float16)
    check_refused(tmp_path, *half, "dtype float32, but it is .* float16 here")

    shorter = Divisible(L.Linear(6, 5), L.Linear(5, 4))
    sgd = optimizers.MomentumSGD().setup(shorter)
    pipe = Pipeline(shorter, MPI.COMM_SELF, n_microbatches=2)
    check_refused(tmp_path, pipe, sgd, "a model of 3 layers, but this one has 2")

    pipe, optimizer = make_run(optimizers.MomentumSGD())
    iterator = chainer.iterators.SerialIterator([1, 2], 1)
    state = {"iterator": iterator}
    check_refused(tmp_path, pipe, optimizer, "has no iterator/current_position", state)


def test_what_cannot_be_saved_is_refused(tmp_path):
    pipe, optimizer = make_run(optimizers.SGD())
    for options, match in [
        ({"state": {"epoch": 3}}, r"state\['epoch'\] is a int"),
        ({"values": {"loss": np.float32(3)}}, "float32 is not JSON"),
        ({"optimizer": [optimizer, optimizer]}, "2 optimizers update .* stage 0"),
    ]:
        arguments = {"optimizer": optimizer, **options}
        with pytest.raises(SnapshotError, match=match):
            save_snapshot(tmp_path / "1", pipe, **arguments)
    assert not names_in(tmp_path)


# -- a loss with parameters ----------------------------------------------------------


class Projected(chainer.Chain):
    """A loss with a layer and a number of its own."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.project = L.Linear(4, 3)
            self.add_persistent("calls", 0)

    def forward(self, y, t):
        self.calls += 1
        return F.softmax_cross_entropy(self.project(y), t % 3)


def run_with_loss(seed):
    np.random.seed(seed)
    stage, loss = Divisible(L.Linear(6, 5), F.tanh, L.Linear(5, 4)), Projected()
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2, lossfun=loss, accfun=None)
    return pipe, [chainer.optimizers.Adam().setup(link) for link in (stage, loss)]


def step_all(pipe, optimizers, i):
    loss = pipe.step(*BATCHES[i])["loss"]
    for optimizer in optimizers:
        optimizer.update()
    return loss


@pytest.mark.parametrize("again", [False, True])
def test_a_loss_with_parameters_is_saved(tmp_path, again):
    pipe, optimizers = run_with_loss(1)
    for i in range(2):
        step_all(pipe, optimizers, i)
    save_snapshot(tmp_path / "1", pipe, optimizers)
    if again:
        repartition(tmp_path / "1", 2, tmp_path / "1_on_2")
    expected = [step_all(pipe, optimizers, i) for i in (2, 3)]
    resumed, its_optimizers = run_with_loss(2)
    load_snapshot(tmp_path / ("1_on_2" if again else "1"), resumed, its_optimizers)
    assert resumed.internals.loss.links["loss"].calls == 4
    assert [step_all(resumed, its_optimizers, i) for i in (2, 3)] == expected


@pytest.mark.parametrize(
    "make_target",
    [
        lambda stage, loss: chainer.ChainList(stage, loss),
        lambda stage, loss: chainer.Sequential(loss, stage),
        lambda stage, loss: chainer.Chain(net=stage, criterion=loss),
    ],
    ids=["ChainList", "Sequential", "Chain"],
)
def test_a_target_with_names_of_its_own(tmp_path, make_target):
    """Layers have their positions, whatever their optimizer calls them."""

    def run(seed, make_target):
        pipe, _ = run_with_loss(seed)
        target = make_target(pipe.stages[0], pipe.internals.loss.links["loss"])
        return pipe, [chainer.optimizers.Adam().setup(target)]

    pipe, optimizers = run(1, make_target)
    for i in range(2):
        step_all(pipe, optimizers, i)
    save_snapshot(tmp_path / "1", pipe, optimizers)
    with np.load(tmp_path / "1" / "stage-0.npz") as arrays:
        keys = {f"optimizer/{path}/W/m" for path in ("0", "2", "loss/project")}
        assert {key for key in arrays if key.endswith("W/m")} == keys
    expected = [step_all(pipe, optimizers, i) for i in (2, 3)]
    resumed, its_optimizers = run(2, lambda stage, loss: chainer.ChainList(loss, stage))
    load_snapshot(tmp_path / "1", resumed, its_optimizers)
    assert [step_all(resumed, its_optimizers, i) for i in (2, 3)] == expected


def test_a_loss_with_parameters_that_was_not_saved(tmp_path):
    pipe, optimizer = make_run(chainer.optimizers.Adam())
    step(pipe, optimizer, 0)
    save_snapshot(tmp_path / "1", pipe, optimizer)
    with pytest.raises(SnapshotError, match="saved with a loss without parameters"):
        load_snapshot(tmp_path / "1", *run_with_loss(2))


def test_an_optimizer_of_something_else_is_refused(tmp_path):
    pipe, optimizers = run_with_loss(1)
    optimizers.append(chainer.optimizers.Adam().setup(L.Linear(2, 2)))
    with pytest.raises(SnapshotError, match="of a Linear updates no stage of rank 0"):
        save_snapshot(tmp_path / "1", pipe, optimizers)


# -- shapes of what is kept beside a parameter -----------------------------------------


WITH_STATE = {
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
    optimizer = MixedPrecision(make(), loss_scale=1.0) if half else make()
    if in_float32:
        optimizer.use_fp32_update()
    optimizer.setup(model)
    Compress(CompressionPlan([Prune("l1", layers="/0", to=0.5)]), optimizer).advance(
        1, 0.0
    )
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
        *((make, {}) for make in WITH_STATE.values()),
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
