"""A snapshot has what the run lacks, or the other way round; one process."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.link_hooks import SpectralNormalization
from mpi4py import MPI

from divisible import Divisible, deferred_init
from pipeline import (
    Pipeline,
    SnapshotError,
    import_npz,
    load_snapshot,
    save_snapshot,
)
from pipeline.snapshots.layers import model_arrays
from pipeline.snapshots.objects import dump_random_states, object_arrays
from pipeline.snapshots.optimizers import optimizer_arrays
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix

BATCHES = make_batches([6, 6, 5, 6])


def run_of(*layers, optimizer=optimizers.MomentumSGD, **options):
    stage = Divisible(*layers)
    pipe = Pipeline(
        stage, MPI.COMM_SELF, n_microbatches=2, **{"accfun": None, **options}
    )
    return pipe, optimizer().setup(stage)


def step(run, i):
    pipe, *its_optimizers = run
    loss = pipe.step(*BATCHES[i])["loss"]
    for optimizer in its_optimizers:
        optimizer.update()
    return loss


def saved(tmp_path, run, n_steps=1, state=None):
    for i in range(n_steps):
        step(run, i)
    save_snapshot(tmp_path / "1", run[0], list(run[1:]), state=state)
    return tmp_path / "1"


def contents(run, state):
    """Returns all that loading may change, as bytes by key."""
    pipe, *its_optimizers = run
    found = object_arrays({**(state or {}), "pipeline": pipe})
    found["random"] = np.array(dump_random_states(state or {}))
    found.update((f"model/{k}", v) for k, v in model_arrays(pipe.stages[0]).items())
    found.update(
        (f"loss/{k}", v) for k, v in object_arrays(pipe.internals.loss.links).items()
    )
    for i, optimizer in enumerate(its_optimizers):
        arrays = optimizer_arrays(optimizer)
        found.update((f"{i}/{k}", v) for k, v in arrays.items())
    return {key: (str(v.dtype), v.tobytes()) for key, v in found.items()}


def refusal(path, run, state=None):
    """Returns the error of loading, which must be one line, and must change nothing."""
    before = contents(run, state)
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(path, run[0], list(run[1:]), state=state)
    assert "\n" not in str(caught.value)
    assert contents(run, state) == before
    run[0].internals.ranks.calls.check_usable()
    return str(caught.value)


class Recurrent(chainer.Chain):
    def __init__(self, rnn):
        super().__init__(rnn=rnn)

    def forward(self, x):
        self.rnn.reset_state()
        return self.rnn(x)


class Projected(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.project = L.Linear(None, 3)

    def forward(self, y, t):
        return F.softmax_cross_entropy(self.project(y), t % 3)


MODELS = {
    "bias": ([L.Linear(6, 4)], [L.Linear(6, 4, nobias=True)], [], ["model/0/b"]),
    "no bias": ([L.Linear(6, 4, nobias=True)], [L.Linear(6, 4)], ["model/0/b"], []),
    "recurrent": (
        [Recurrent(L.LSTM(6, 4))],
        [Recurrent(L.StatefulGRU(6, 4))],
        ["model/0/rnn/W", "model/0/rnn/U_r"],
        ["model/0/rnn/upward", "model/0/rnn/lateral"],
    ),
    "normalization": (
        [L.BatchNormalization(6), L.Linear(6, 4)],
        [F.tanh, L.Linear(6, 4)],
        [],
        ["model/0/avg_mean", "model/0/gamma", "optimizer/0/gamma"],
    ),
    "function": ([L.Linear(6, 4), L.Linear(4, 4)], [L.Linear(6, 4), F.relu], [], []),
    "spectral": (
        [L.Linear(6, 4).add_hook(SpectralNormalization())],
        [L.Linear(6, 4)],
        [],
        ["model/0/W_u"],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_another_model(tmp_path, name):
    before, after, missing, left_over = MODELS[name]
    path = saved(tmp_path, run_of(*before))
    run = run_of(*after)
    message = refusal(path, run)
    for key in (*missing, *left_over):
        assert key.split("/", 1)[1] in message
    with pytest.warns(UserWarning, match="is loaded in part: of the model"):
        found = load_snapshot(path, *run, strict=False).differences
    assert all(any(key in other for other in found.missing) for key in missing)
    assert set(left_over) <= set(found.left_over)
    assert bool(found.missing) == bool(missing)
    step(run, 1)


@pytest.mark.parametrize(
    "layers",
    [
        [L.Linear(6, 4), L.Linear(4, 4)],
        [L.Linear(6, 5)],
        [L.Linear(6, 4, nobias=True)],
    ],
    ids=["more layers", "another shape", "fewer parameters"],
)
def test_a_run_is_told_to_leave_the_directory_of_another_one(tmp_path, layers):
    """As where two scripts with --resume auto write to the same one."""
    path = saved(tmp_path, run_of(L.Linear(6, 4)))
    message = refusal(path, run_of(*layers))
    assert message.startswith(f"cannot load the snapshot {path}: ")
    assert message.endswith("give this one a directory of its own, or resume=None")


def test_what_is_alike_is_loaded_without_strict(tmp_path):
    model = run_of(L.Linear(6, 5), F.tanh, L.Linear(5, 4))
    path = saved(tmp_path, model)
    run = run_of(L.Linear(6, 5, nobias=True), F.tanh, L.Linear(5, 4))
    with pytest.warns(UserWarning, match="0/b is left over"):
        load_snapshot(path, *run, strict=False)
    for layer in (0, 2):
        expected, actual = (r[0].stages[0][layer].W for r in (model, run))
        assert (actual.array == expected.array).all()
        assert (actual.update_rule.state["v"] == expected.update_rule.state["v"]).all()


OPTIMIZERS = [
    (optimizers.Adam, optimizers.SGD, "0/W/m"),
    (optimizers.SGD, optimizers.Adam, "has no 0/W/m"),
    (optimizers.AMSGrad, optimizers.Adam, "0/W/vhat"),
    (optimizers.MomentumSGD, optimizers.NesterovAG, ""),
    (optimizers.Adam, optimizers.AdamW, ""),
    (optimizers.Adam, optimizers.MomentumSGD, "0/W/m"),
]


@pytest.mark.parametrize(("before", "after", "key"), OPTIMIZERS)
def test_another_optimizer(tmp_path, before, after, key):
    layer = L.Linear(6, 4)
    path = saved(tmp_path, run_of(layer, optimizer=before))
    weights = layer.W.array.copy()
    message = refusal(path, run_of(L.Linear(6, 4), optimizer=after))
    assert key in message
    classes = f"of the optimizer {before.__name__}, but {after.__name__} is here"
    assert classes in message

    # Without strict it begins anew, with its own hyperparameters.
    run, serial = run_of(L.Linear(6, 4), optimizer=after), Divisible(L.Linear(6, 4))
    with pytest.warns(UserWarning, match=classes):
        found = load_snapshot(path, *run, strict=False).differences
    assert f"optimizer: {before.__name__}" in found.left_over
    assert f"optimizer: {after.__name__}" in found.missing
    assert vars(run[1].hyperparam) == vars(after().hyperparam)
    serial.copyparams(run[0].stages[0])
    assert (serial[0].W.array == weights).all()
    its_optimizer = after().setup(serial)
    for i in (1, 2):
        step(run, i)
        loss = F.softmax_cross_entropy(serial(BATCHES[i][0]), BATCHES[i][1])
        serial.cleargrads()
        loss.backward()
        its_optimizer.update()
    np.testing.assert_allclose(
        run[0].stages[0][0].W.array, serial[0].W.array, 1e-4, 1e-6
    )


def test_a_rule_of_another_class(tmp_path):
    path = saved(tmp_path, run_of(L.Linear(6, 4)))
    run = run_of(L.Linear(6, 4))
    run[0].stages[0][0].W.update_rule = optimizers.NesterovAG().create_update_rule()
    assert "optimizer MomentumSGDRule, but NesterovAGRule" in refusal(path, run)


def test_an_optimizer_that_was_not_saved(tmp_path):
    run = run_of(L.Linear(6, 4))
    path = saved(tmp_path, run[:1])
    message = refusal(path, run)
    assert "of the optimizer it has no 0/W, 0/b, epoch, settings, t" in message
    path = saved(tmp_path, run)
    assert "of the optimizer 0/W, 0/b, epoch, settings, t are left" in refusal(
        path, run[:1]
    )


@pytest.mark.parametrize("what", ["use_fp32_update", "loss_scaling"])
@pytest.mark.parametrize("is_saved", [True, False])
def test_what_optimizers_do_for_float16(tmp_path, what, is_saved):
    def run(has_it):
        with chainer.using_config("dtype", np.float16):
            pipe, optimizer = run_of(L.Linear(6, 4), loss_scale=1)
        if has_it:
            getattr(optimizer, what)()
        return pipe, optimizer

    key = {"use_fp32_update": "0/W/fp32_param", "loss_scaling": "settings/loss_scale"}
    message = refusal(saved(tmp_path, run(is_saved)), run(not is_saved))
    assert key[what] in message and ("left over" in message) == is_saved


def test_copies_of_before_the_first_update(tmp_path):
    """One that is there must not remain: it would be what the weights become."""

    def run():
        with chainer.using_config("dtype", np.float16):
            pipe, optimizer = run_of(L.Linear(6, 4), loss_scale=1)
        optimizer.use_fp32_update()
        return pipe, optimizer

    first = run()
    path = saved(tmp_path, first, n_steps=0)
    weight = first[0].stages[0][0].W
    step(first, 0)
    expected = weight.array.copy()
    step(first, 1)
    load_snapshot(path, *first)
    step(first, 0)
    assert (weight.array == expected).all()


class Counting:
    name, call_for_each_param, n_calls = "Counting", False, 0

    def __call__(self, optimizer):
        self.n_calls += 1

    def serialize(self, serializer):
        self.n_calls = serializer("n_calls", self.n_calls)


def test_a_hook_with_state(tmp_path):
    run, plain = run_of(L.Linear(6, 4)), run_of(L.Linear(6, 4))
    run[1].add_hook(Counting())
    message = refusal(saved(tmp_path, run), plain)
    assert "of the optimizer hooks/Counting is left over" in message
    assert "it has no hooks/Counting" in refusal(saved(tmp_path, plain), run)


def test_mixed_precision_into_plain_and_back(tmp_path):
    from mixed_precision import MixedPrecision

    def run(mixed):
        with chainer.using_config("dtype", np.float16):
            stage = Divisible(L.Linear(6, 4))
        optimizer = optimizers.MomentumSGD()
        if mixed:
            optimizer = MixedPrecision(optimizer, loss_scale=8.0, comm=MPI.COMM_SELF)
        pipe = Pipeline(
            stage, MPI.COMM_SELF, n_microbatches=2, accfun=None, loss_scale=8.0
        )
        return pipe, optimizer.setup(stage)

    message = refusal(saved(tmp_path, run(True)), run(False))
    assert "0/W/master" in message and "loss_scale/scale" in message
    assert "left over" in message
    message = refusal(saved(tmp_path, run(False)), run(True))
    assert "it has no 0/W/master" in message and "loss_scale" in message


def test_a_loss_with_parameters(tmp_path):
    run = (*run_of(L.Linear(6, 4), lossfun=Projected()),)
    run = (*run, optimizers.Adam().setup(run[0].internals.loss.links["loss"]))
    path = saved(tmp_path, run)
    message = refusal(path, run_of(L.Linear(6, 4)))
    assert "of the model loss/project is left over" in message
    path = saved(tmp_path, run_of(L.Linear(6, 4)))
    with pytest.warns(UserWarning, match="saved with a loss without parameters"):
        load_snapshot(path, run[0], list(run[1:]), strict=False)


def iterator(seed=0):
    order = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(seed))
    return chainer.iterators.SerialIterator(range(9), 4, order_sampler=order)


def test_state_that_is_forgotten(tmp_path):
    run = run_of(L.Linear(6, 4))
    generator = np.random.RandomState(3)
    state = {"iterator": iterator(), "generator": generator}
    path = saved(tmp_path, run, state=state)
    message = refusal(path, run)
    assert "iterator/current_position" in message
    assert "of the random states generator, iterator are left over" in message
    message = refusal(path, run, {**state, "other": np.random.RandomState(1)})
    assert "of the random states it has no other" in message
    expected = generator.rand()
    with pytest.warns(UserWarning, match="iterator/epoch"):
        load_snapshot(path, *run, state={"generator": generator}, strict=False)
    assert generator.rand() == expected


# -- layers that are sized, and register more, at their first call -------------------


def spectral(**options):
    hook = SpectralNormalization(**options)
    return [L.Linear(None, 5).add_hook(hook), F.tanh, L.Linear(None, 4)]


LAZY = {
    "linear": lambda: [L.Linear(None, 5), F.dropout, L.Linear(None, 4)],
    "spectral": spectral,
    "gamma": lambda: spectral(use_gamma=True),
    "normalization": lambda: [L.BatchNormalization(axis=0), L.Linear(None, 4)],
    "maxout": lambda: [L.Highway(6), L.Maxout(None, 5, 2), L.Linear(None, 4)],
}


@pytest.mark.parametrize(
    "was_called, is_called",
    [(True, False), (False, True), *matrix((True, True), (False, False))],
)
@pytest.mark.parametrize("name", LAZY)
def test_layers_are_as_they_were_saved(tmp_path, name, was_called, is_called):
    def run(seed):
        np.random.seed(seed)
        return run_of(*LAZY[name](), optimizer=optimizers.Adam)

    first, resumed = run(1), run(2)
    path = saved(tmp_path, first, n_steps=2 if was_called else 0)
    expected = [step(first, i) for i in (2, 3)]
    if is_called:
        step(resumed, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_snapshot(path, *resumed)
    assert [step(resumed, i) for i in (2, 3)] == expected
    for (path, param), other in zip(
        sorted(first[0].stages[0].namedparams()),
        (param for _, param in sorted(resumed[0].stages[0].namedparams())),
    ):
        np.testing.assert_array_equal(other.array, param.array, path)


@pytest.mark.parametrize("is_called", [True, False])
@pytest.mark.parametrize("name", LAZY)
def test_import_sizes_layers(tmp_path, name, is_called):
    x = BATCHES[0][0]
    np.random.seed(1)
    serial, model = Divisible(*LAZY[name]()), Divisible(*LAZY[name]())
    serial(x)
    chainer.serializers.save_npz(tmp_path / "model.npz", serial)
    if is_called:
        model(x)
    assert not import_npz(tmp_path / "model.npz", model)
    with chainer.using_config("train", False):
        assert (model(x).array == serial(x).array).all()


class DrawsAtFirstCall(chainer.Chain):
    """Draws weights outside of initializers, as ``L.LSTM(None, n)`` does."""

    def __init__(self):
        super().__init__(rnn=L.LSTM(None, 5))

    def forward(self, x):
        self.rnn.reset_state()
        return self.rnn(x)


@pytest.mark.parametrize("is_called", [True, False])
def test_layers_of_deferred_init_are_drawn_again(tmp_path, is_called):
    def make():
        with deferred_init(seed=3):
            model = Divisible(DrawsAtFirstCall(), L.Linear(5, 4))
        stage = model.divide()
        pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2, accfun=None)
        return pipe, optimizers.Adam().setup(stage)

    first, resumed = make(), make()
    path = saved(tmp_path, first, n_steps=0)
    expected = [step(first, i) for i in (2, 3)]
    if is_called:
        step(resumed, 0)
    load_snapshot(path, *resumed)
    assert [step(resumed, i) for i in (2, 3)] == expected


def test_a_loss_that_is_sized_at_its_first_call(tmp_path):
    def run(seed):
        np.random.seed(seed)
        run = run_of(L.Linear(6, 4), lossfun=Projected())
        return (*run, optimizers.Adam().setup(run[0].internals.loss.links["loss"]))

    first, resumed = run(1), run(2)
    path = saved(tmp_path, first, n_steps=0)
    expected = [step(first, i) for i in (2, 3)]
    step(resumed, 0)
    load_snapshot(path, resumed[0], list(resumed[1:]))
    assert [step(resumed, i) for i in (2, 3)] == expected


def test_the_dtype_of_a_layer_that_is_not_sized(tmp_path):
    path = saved(tmp_path, run_of(L.Linear(None, 4)))
    half = chainer.initializers.Zero(np.float16)
    message = refusal(path, run_of(L.Linear(None, 4, initialW=half), loss_scale=1))
    assert "0/W was saved with dtype float32, but it is float16 here" in message
    run = run_of(L.Linear(None, 4))
    with chainer.using_config("dtype", np.float16):
        load_snapshot(path, *run)
    assert run[0].stages[0][0].W.dtype == np.float32


class Scaled(chainer.Link):
    """Registers at its first call, as only itself knows."""

    def forward(self, x):
        if not hasattr(self, "scale"):
            with self.init_scope():
                self.scale = chainer.Parameter(np.ones(x.shape[1:], np.float32))
        return F.scale(x, self.scale)


def test_a_link_that_registers_at_its_first_call(tmp_path):
    path = saved(tmp_path, run_of(Scaled(), L.Linear(6, 4)))
    run = run_of(Scaled(), L.Linear(6, 4))
    message = refusal(path, run)
    assert "0/scale is left over" in message and "make a call before loading" in message
    run[0].evaluate(*BATCHES[0])
    load_snapshot(path, *run)


# -- files of serial scripts ---------------------------------------------------------


def test_import_of_another_model(tmp_path):
    path = tmp_path / "model.npz"
    model = Divisible(L.Linear(2, 3), L.Linear(3, 2), L.Linear(2, 2))
    chainer.serializers.save_npz(path, model)
    other = Divisible(L.Linear(2, 3), L.Linear(3, 2, nobias=True), F.relu)
    before = other[0].W.array.copy()
    # Whose layer it is says so; the others read theirs.
    with pytest.raises(SnapshotError, match="of the model 1/b is left over"):
        import_npz(path, other.divide(1, 2))
    with pytest.raises(ValueError, match="1/b, 2/W, 2/b are left over"):
        import_npz(path, other)
    assert (other[0].W.array == before).all()
    assert not import_npz(path, other.divide(0, 1))
    with pytest.warns(UserWarning, match="loaded in part: of the model 1/b"):
        found = import_npz(path, other, strict=False)
    assert found.left_over == ("model/1/b", "model/2/W", "model/2/b")
    assert (other[1].W.array == model[1].W.array).all()
    with pytest.raises(SnapshotError, match="2/W, 2/b are left over"):
        import_npz(path, Divisible(L.Linear(2, 3), L.Linear(3, 2)).divide(0, 1))
