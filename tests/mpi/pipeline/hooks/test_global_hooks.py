"""Hooks that look at the whole model give what they give in serial training."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from mpi4py import MPI

from divisible import Divisible, Plan
from mixed_precision import MixedPrecision
from pipeline import Pipeline, PipelineUpdater
from tests.support.equivalence import make_batches, stages_of_rank
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

BATCHES = make_batches([12, 12, 7, 12])


def line(dtype=np.float32):
    np.random.seed(3)
    with chainer.using_config("dtype", dtype):
        layers = [L.Linear(6, 6, nobias=i == 1) for i in range(4)]
        return Divisible(layers[0], F.tanh, *layers[1:], L.Linear(6, 4))


def tied():
    model = line()
    model.tie("/0/W", "/2/W")
    model.tie("/0/W", "/4/W", transpose=True)
    return model


def half():
    return line(np.float16)


class Unused(chainer.Link):
    """Has a parameter that gets no gradient."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.nothing = chainer.Parameter(1.0, (3,))

    def forward(self, x):
        return x


def unused():
    model = line()
    return Divisible(*model, Unused())


class Temperature(chainer.Link):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.rate = chainer.Parameter(np.float32(2), ())

    def forward(self, y, t):
        return F.softmax_cross_entropy(y * F.broadcast_to(self.rate, y.shape), t)


def freeze(links, frozen):
    for link in links:
        for path, param in link.namedparams():
            if path.startswith(frozen):
                param.update_rule.enabled = False


def make_optimizer(link, clippings, others=()):
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(link)
    optimizer.add_hook(hooks.WeightDecay(0.01))
    for threshold in clippings:
        name = f"clip by {threshold}"
        optimizer.add_hook(hooks.GradientClipping(threshold), name)
    for hook in others:
        optimizer.add_hook(hook)
    return optimizer


def clipped_serially(make_model, clippings, frozen=(), loss=None, batches=BATCHES):
    model = make_model()
    whole = chainer.ChainList(model) if loss is None else chainer.ChainList(model, loss)
    optimizer = make_optimizer(whole, clippings)
    freeze([model], frozen)
    losses = []
    for x, t in batches:
        y = model(x.astype(next(model.params()).dtype))
        value = (loss or F.softmax_cross_entropy)(F.cast(y, np.float32), t)
        whole.cleargrads()
        value.backward()
        optimizer.update()
        losses.append(float(value.array))
    return losses, dict(model.namedparams()), loss


def clipped(
    comm, make_model, clippings, frozen=(), loss=None, n=1, updater=False, **options
):
    """Trains on all ranks; returns what is to be compared with serial training."""
    per_rank = 2 if options.get("schedule") == "interleaved" else 1
    model = make_model()
    plan = Plan.uniform(len(model), per_rank * comm.size)
    mine = stages_of_rank(comm, plan.n_stages, options.get("schedule"))
    stages = [model.divide(*plan.range(i)) for i in mine]
    optimizers = [make_optimizer(stage, ()) for stage in stages]
    lossfun = F.softmax_cross_entropy if loss is None else loss
    losses = []
    options = {"timeout": 20, "loss_scale": 1, **options}
    with Pipeline(stages, comm, n_microbatches=n, lossfun=lossfun, **options) as pipe:
        if loss is not None and pipe.is_last:
            optimizers.append(make_optimizer(loss, ()))
        freeze(stages, frozen)
        if updater:
            # All in one batch, in their order.
            samples = [(x, t) for batch in BATCHES for x, t in zip(*batch)]
            iterator = chainer.iterators.SerialIterator(samples, 12, shuffle=False)
            whole = PipelineUpdater(iterator, optimizers, pipe)
        else:
            pipe.global_hooks(optimizers)
            pipe.global_hooks(optimizers[0])
        # Hooks that come later are seen too.
        for optimizer in optimizers:
            for threshold in clippings:
                name = f"clip by {threshold}"
                optimizer.add_hook(hooks.GradientClipping(threshold), name)
        for x, t in BATCHES:
            if updater:
                observation = {}
                with chainer.Reporter().scope(observation):
                    whole.update()
                losses.append(observation["main/loss"])
                continue
            losses.append(pipe.step(x, t)["loss"])
            for optimizer in optimizers:
                optimizer.update()
    return losses, [p for stage in stages for p in stage.namedparams()], loss


def compare(actual, expected, exactly):
    check = np.testing.assert_array_equal if exactly else assert_close
    check(actual[0], expected[0])
    for path, param in actual[1]:
        check(param.array, expected[1][path].array, path)


def assert_close(actual, expected, what=""):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=what)


def clip_as_serial(comm):
    """With one microbatch bit for bit, else up to the order of additions."""
    free, _, _ = clipped_serially(line, ())
    everything = [
        {"make_model": line, "clippings": (0.4,)},
        {"make_model": line, "clippings": (0.4,), "frozen": ("/0", "/4")},
        {"make_model": line, "clippings": (1.0, 0.3)},
        {"make_model": unused, "clippings": (0.4,)},
        {"make_model": half, "clippings": (0.4,)},
    ]
    for case in everything:
        expected = clipped_serially(**case)
        assert expected[0] != free
        compare(clipped(comm, **case), expected, exactly=True)
        if case["make_model"] is not half:
            compare(clipped(comm, **case, n=3), expected, exactly=False)
    for frozen in ((), ("/0/W",)):
        # The gradients of copies are added up in another order than in one graph.
        expected = clipped_serially(tied, (0.4,), frozen)
        compare(clipped(comm, tied, (0.4,), frozen), expected, exactly=False)
    expected = clipped_serially(line, (0.4,), loss=Temperature())
    for n in (1, 3):
        actual = clipped(comm, line, (0.4,), loss=Temperature(), n=n)
        compare(actual, expected, exactly=n == 1)
        if comm.rank == comm.size - 1:
            assert_close(actual[2].rate.array, expected[2].rate.array)


def test_clipping_is_that_of_serial_training():
    assert_on_ranks(3, clip_as_serial)


@pytest.mark.matrix
def test_on_one_rank_too():
    clip_as_serial(MPI.COMM_SELF)


def test_on_one_rank_with_and_without_a_loss_of_parameters():
    for make_loss in (lambda: None, Temperature):
        expected = clipped_serially(line, (0.4,), loss=make_loss())
        actual = clipped(MPI.COMM_SELF, line, (0.4,), loss=make_loss())
        compare(actual, expected, exactly=True)


def several_optimizers(comm):
    """Those of two stages on a rank are one, also when an updater calls them."""
    for make_model in (line, tied):
        expected = clipped_serially(make_model, (0.4,))
        for updater in (False, True):
            options = {"schedule": "interleaved", "n": 2, "updater": updater}
            if updater:
                x, t = (np.concatenate(arrays) for arrays in zip(*BATCHES))
                batches = [
                    (x.take(i, 0, mode="wrap"), t.take(i, mode="wrap"))
                    for i in np.arange(48).reshape(4, 12)
                ]
                expected = clipped_serially(make_model, (0.4,), batches=batches)
            actual = clipped(comm, make_model, (0.4,), **options)
            compare(actual, expected, exactly=False)


def test_several_optimizers_of_a_rank_are_one():
    assert_on_ranks(2, several_optimizers)


class Scheduled(hooks.GradientClipping):
    """Another threshold, the same call."""


class Silent(hooks.GradientClipping):
    """A call of its own."""

    def __call__(self, opt):
        super().__call__(opt)


def observe(opt):
    pass


def count_warnings(comm, hook, given, updater=False):
    """Returns what a pipeline warns of in three steps."""
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = make_optimizer(stage, ())
    optimizer.add_hook(hook, "my hook")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
            if given:
                pipe.global_hooks(optimizer)
            for x, t in BATCHES[:3]:
                pipe.step(x, t)
                optimizer.update()
    return [w for w in caught if "hook" in str(w.message)]


def warn_of_what_sees_a_stage(comm):
    noise = hooks.GradientNoise(0.01)
    quiet = [hooks.Lasso(0.1), hooks.GradientHardClipping(-1, 1), noise]
    for hook in (*quiet, hooks.GradientLARS()):
        assert not count_warnings(comm, hook, True)
        assert not count_warnings(comm, hook, False)
    for hook in (hooks.GradientClipping(0.1), Scheduled(0.1)):
        assert not count_warnings(comm, hook, True)
        (warning,) = count_warnings(comm, hook, False)
        assert "pipe.global_hooks(optimizer)" in str(warning.message)
        assert warning.filename == __file__
    for hook in (Silent(0.1), observe):
        for given in (True, False):
            (warning,) = count_warnings(comm, hook, given)
            words = f"the hook 'my hook' of the optimizer on rank {comm.rank} is called"
            assert words in str(warning.message)
            assert warning.filename == __file__
        assert not count_warnings(MPI.COMM_SELF, hook, True)


def test_hooks_that_see_one_stage_only_are_named_once():
    assert_on_ranks(2, warn_of_what_sees_a_stage)


def set_up_another(comm):
    """An optimizer in the place of a given one is not given; one set up anew is."""
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    optimizer = make_optimizer(stage, (0.4,))
    pipe.global_hooks(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipe.step(*BATCHES[0])
        optimizer.setup(stage)
        pipe.step(*BATCHES[0])
        optimizer.add_hook(hooks.GradientClipping(0.1))
        optimizer.update()
        squares = [float((param.grad**2).sum()) for param in stage.params()]
        assert_close(sum(sum(comm.allgather(squares), [])) ** 0.5, 0.1)
        assert not caught
        other = make_optimizer(stage, (0.4,))
        pipe.step(*BATCHES[0])
        other.update()
    assert ["pipe.global_hooks(optimizer)" in str(w.message) for w in caught] == [True]


def test_another_optimizer_in_the_place_of_one():
    assert_on_ranks(2, set_up_another)


def unlike_hooks(comm, what):
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    thresholds = {"one rank": [0.5] if comm.rank else [], "two": [0.5 + comm.rank]}
    optimizer = make_optimizer(stage, thresholds.get(what, [0.5]))
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    if what != "not given" or comm.rank:
        pipe.global_hooks(optimizer)
    pipe.step(*BATCHES[0])


@pytest.mark.parametrize(
    "what, word",
    [
        ("one rank", "rank 0 has none; rank 1 has GradientClipping(0.5)"),
        ("two", "rank 0 has GradientClipping(0.5); rank 1 has GradientClipping(1.5)"),
        ("not given", "give the optimizers to pipe.global_hooks(optimizer)"),
    ],
)
def test_hooks_that_are_not_the_same_on_all_ranks_are_refused(what, word):
    result = refused_on_ranks(2, unlike_hooks, what)
    assert result.outcomes == ["failed"] * 2, result
    assert result.output.count("DisagreementError: hooks that look at") == 2, result
    assert word in result.output


def noise_of_cut(comm, make_model):
    """Returns the parameters, of all ranks, after training with noise."""
    model = make_model()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    del model
    # The global generators of the ranks differ.
    np.random.seed(comm.rank)
    optimizer = make_optimizer(stage, (0.4,), [hooks.GradientNoise(0.3)])
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        pipe.global_hooks(optimizer)
        for x, t in BATCHES:
            pipe.step(x, t)
            optimizer.update()
    return {path: param.array for path, param in stage.namedparams()}


def draw_noise(comm):
    for make_model in (line, tied):
        expected = noise_of_cut(MPI.COMM_SELF, make_model)
        for path, array in noise_of_cut(comm, make_model).items():
            np.testing.assert_allclose(array, expected[path], atol=1e-6)


def test_noise_does_not_depend_on_the_cut():
    assert_on_ranks(3, draw_noise)


def test_what_cannot_be_given_is_refused():
    stage = line()
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(ValueError, match="SGD has no model: call optimizer.setup"):
        pipe.global_hooks(chainer.optimizers.SGD())
    with pytest.raises(TypeError, match="chainer.Optimizer, not Divisible"):
        pipe.global_hooks(stage)


def test_optimizers_of_a_rank_that_clip_differently_are_refused():
    model = line()
    stages = [model.divide(0, 3), model.divide(3, 6)]
    optimizers = [make_optimizer(stage, (0.1 * i,)) for i, stage in enumerate(stages)]
    pipe = Pipeline(stages, MPI.COMM_SELF, n_microbatches=2, schedule="interleaved")
    pipe.global_hooks(optimizers)
    with pytest.raises(ValueError, match=r"rank 0 clip differently.*0\.0.*0\.1"):
        pipe.step(*BATCHES[0])


def skips_alone(comm):
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = make_optimizer(stage, ())
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    pipe.global_hooks(optimizer)
    pipe.step(*BATCHES[0])
    optimizer.loss_scaling()
    for call in (lambda: pipe.global_hooks(optimizer), lambda: pipe.step(*BATCHES[0])):
        with pytest.raises(ValueError, match="would skip steps that other ranks take"):
            call()


def test_an_optimizer_that_skips_steps_alone_is_refused():
    assert_on_ranks(2, skips_alone)


def one_updates(comm):
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = make_optimizer(stage, (0.4,))
    # What the first step loads may take longer than others are to wait.
    with Pipeline(stage, comm, n_microbatches=2, timeout=60) as pipe:
        pipe.step(*BATCHES[0])
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=1)
    pipe.global_hooks(optimizer)
    pipe.step(*BATCHES[0])
    if comm.rank == 0:
        optimizer.update()


def test_a_rank_that_updates_alone_does_not_wait_for_ever():
    result = refused_on_ranks(2, one_updates)
    assert "StallError: waited" in result.output, result
    assert "rank 1 to make the first update (rank 0 is here)" in result.output


def chainermn_optimizer(comm):
    import chainermn

    model = line()
    stages = [model.divide(0, 3), model.divide(3, 6)]
    optimizers = [make_optimizer(stage, (0.4,)) for stage in stages]
    alone = chainermn.create_communicator("naive", MPI.COMM_SELF)
    wrapped = [chainermn.create_multi_node_optimizer(o, alone) for o in optimizers]
    with Pipeline(
        stages, MPI.COMM_SELF, n_microbatches=1, schedule="interleaved"
    ) as pipe:
        pipe.global_hooks(wrapped)
        # Its first update copies weights only, and updates nothing.
        for x, t in BATCHES[:1] + BATCHES:
            pipe.step(x, t)
            for optimizer in wrapped:
                optimizer.update()
    _, expected, _ = clipped_serially(line, (0.4,))
    for stage in stages:
        for path, param in stage.namedparams():
            np.testing.assert_array_equal(param.array, expected[path].array)


def test_optimizers_of_chainermn():
    assert_on_ranks(1, chainermn_optimizer)


def mixed(comm):
    """Mixed precision agrees by itself, and is not warned of in a loop by hand."""
    model = line()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    momentum = chainer.optimizers.MomentumSGD(0.1)
    optimizer = MixedPrecision(momentum, loss_scale=1, comm=comm, timeout=20).setup(
        stage
    )
    optimizer.add_hook(hooks.WeightDecay(0.01))
    optimizer.add_hook(hooks.GradientClipping(0.4), "clip by 0.4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {"timeout": 20, "loss_scale": optimizer.loss_scale}
        with Pipeline(stage, comm, n_microbatches=2, **options) as pipe:
            for x, t in BATCHES:
                pipe.step(x, t)
                optimizer.update()
                pipe.global_hooks(optimizer)
    _, expected, _ = clipped_serially(line, (0.4,))
    for path, param in stage.namedparams():
        assert_close(param.array, expected[path].array)


def test_mixed_precision_goes_on_by_itself():
    assert_on_ranks(2, mixed)
