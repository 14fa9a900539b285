"""Mixed precision across stages and replicas."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from mixed_precision import (
    DynamicLossScale,
    MixedPrecision,
    MomentumSGD16,
    float32_loss,
    to_float16,
)
from pipeline import Pipeline, PipelineUpdater
from tests.support.equivalence import STAGES_PER_RANK, make_batches, stages_of_rank
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

SCALE = {"initial": 2.0**20, "growth_interval": 3}


def deep_model():
    """Its gradients overflow in the first steps, at the scale above."""
    np.random.seed(3)
    layers = []
    for _ in range(3):
        layers += [L.Linear(6, 6), L.BatchNormalization(6), F.relu]
    return to_float16(Divisible(*layers, L.Linear(6, 6), L.Linear(6, 4)))


def make_optimizer(name, comm, stages):
    inner = {
        "momentum": lambda: chainer.optimizers.MomentumSGD(0.1),
        "adam": lambda: chainer.optimizers.Adam(0.01),
        "adagrad": lambda: chainer.optimizers.AdaGrad(0.1),
        "momentum16": lambda: MomentumSGD16(0.1),
    }[name]()
    loss_scale = DynamicLossScale(**SCALE)
    optimizer = MixedPrecision(
        inner, loss_scale=loss_scale, comm=comm, timeout=20
    ).setup(stages)
    # The norm counts all stages; after the decay it is asked for anew.
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.5))
    return optimizer


def train(comm, name, stages, batches, **options):
    optimizer = make_optimizer(name, comm, stages)
    options["loss_scale"] = optimizer.loss_scale
    losses = []
    with Pipeline(stages, comm, timeout=20, **options) as pipe:
        for x, t in batches:
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
            losses.append(optimizer.gradient_norm)
    return losses, optimizer


def bit_for_bit(comm, name, schedule, n_microbatches):
    batches = make_batches([8] * 6)
    whole = deep_model()
    options = {"n_microbatches": n_microbatches}
    expected, reference = train(MPI.COMM_SELF, name, [whole], batches, **options)
    assert reference.n_skipped > 0 and reference.t > 0

    model = deep_model()
    per_rank = STAGES_PER_RANK[schedule]
    plan = Plan.uniform(len(model), per_rank * comm.size)
    mine = stages_of_rank(comm, plan.n_stages, schedule)
    stages = [model.divide(*plan.range(i)) for i in mine]
    del model
    options["schedule"] = schedule
    losses, optimizer = train(comm, name, stages, batches, **options)
    assert losses == expected
    assert vars(optimizer.loss_scale) == vars(reference.loss_scale)
    assert (optimizer.t, optimizer.n_skipped) == (reference.t, reference.n_skipped)
    masters = reference._masters.by_path()
    for path, master in optimizer._masters.by_path().items():
        np.testing.assert_array_equal(master, masters[path])
    expected = dict(whole.namedparams())
    for path, param in optimizer.target.namedparams():
        np.testing.assert_array_equal(param.array, expected[path].array)


@pytest.mark.parametrize(
    "n_ranks, name, schedule",
    [
        (4, "momentum", "gpipe"),
        (3, "adam", "1f1b"),
        (2, "momentum16", "zb_h1"),
        (2, "adagrad", "interleaved"),
    ],
)
def test_pipelined_is_serial_bit_for_bit(n_ranks, name, schedule):
    assert_on_ranks(n_ranks, bit_for_bit, name, schedule, 3)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad", "momentum16"])
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_bit_for_bit_in_all_combinations(n_ranks, name, schedule):
    for n_microbatches in (1, 4):
        assert_on_ranks(n_ranks, bit_for_bit, name, schedule, n_microbatches)


def as_chainer(comm):
    """With one microbatch it is the ordinary loop, without a pipeline."""
    batches = make_batches([8] * 6)
    model = deep_model()
    optimizer = make_optimizer("momentum", None, model)
    for x, t in batches:
        loss = float32_loss(F.softmax_cross_entropy)(model(x.astype("e")), t)
        model.cleargrads()
        optimizer.backward(loss)
        optimizer.update()
    masters = optimizer._masters.by_path()

    again = deep_model()
    plan = Plan.uniform(len(again), comm.size)
    stage = again.divide(*plan.range(comm.rank))
    _, pipelined = train(comm, "momentum", [stage], batches, n_microbatches=1)
    for path, master in pipelined._masters.by_path().items():
        np.testing.assert_array_equal(master, masters[path])


def test_pipelined_is_chainer_bit_for_bit():
    assert_on_ranks(2, as_chainer)


def two_clippings(comm):
    """Ranks with and without rules of their own meet in the same all-reduces."""
    weights = {}
    for group, part in ((MPI.COMM_SELF, (0, 2)), (comm, (comm.rank, comm.rank + 1))):
        np.random.seed(0)
        model = to_float16(Divisible(L.Linear(6, 5), L.Linear(5, 4)))
        stage = model.divide(*part)
        sgd = chainer.optimizers.SGD(0.5)
        optimizer = MixedPrecision(sgd, loss_scale=4, comm=group, timeout=20).setup(
            stage
        )
        assert optimizer.has_comm
        for path, param in stage.namedparams():
            if path == "/0/W":
                # No kernel updates it.
                param.update_rule = chainer.optimizers.AdaGrad().create_update_rule()
        for name, threshold in (("first", 1.0), ("second", 0.5)):
            optimizer.add_hook(
                chainer.optimizer_hooks.GradientClipping(threshold), name
            )
        for _ in range(3):
            give_gradients(optimizer, 8)
            optimizer.update()
        for path, param in stage.namedparams():
            expected = weights.setdefault(path, param.array)
            np.testing.assert_allclose(param.array, expected, rtol=1e-3)


def test_two_clippings_where_one_rank_has_a_rule_of_its_own():
    assert_on_ranks(2, two_clippings)


class CountingComm(MPI.Intracomm):
    n_duplicates = 0

    def Idup(self, info=MPI.INFO_NULL):
        CountingComm.n_duplicates += 1
        return super().Idup(info)

    def Free(self):
        CountingComm.n_duplicates -= 1
        super().Free()


def duplicates(comm):
    comm = CountingComm(comm)
    optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=4, comm=comm)
    for _ in range(3):
        optimizer.setup(to_float16(L.Linear(3, 2)))
        give_gradients(optimizer, 1)
        optimizer.update()
    assert comm.n_duplicates == 1
    optimizer.close()
    optimizer.close()
    assert comm.n_duplicates == 0
    give_gradients(optimizer, 1)
    optimizer.update()
    assert optimizer.t == 2


def test_duplicates_of_the_communicator_do_not_pile_up():
    assert_on_ranks(2, duplicates)


def test_one_rank_asks_nobody():
    comm = CountingComm(MPI.COMM_SELF)
    optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=4, comm=comm)
    optimizer.setup(to_float16(L.Linear(3, 2)))
    give_gradients(optimizer, 1)
    optimizer.update()
    assert (optimizer.t, comm.n_duplicates) == (1, 0)


N_OVERFLOW_STEPS = 100


def random_overflows(comm, replicas):
    """Random overflows on random ranks; what follows is worked out on each rank."""
    # It grows about as often as it shrinks.
    loss_scale = DynamicLossScale(
        2.0**10, growth_interval=3, minimum=2.0**-99, maximum=2.0**99
    )
    link = L.Linear(3, 2, initialW=1)
    if replicas:
        # Two ranks hold the parameters of each stage.
        stage = Divisible(*[F.relu] * (comm.rank // 2), link)
        n_stages = comm.size // 2
    else:
        stage = Divisible(*[F.relu] * comm.rank, link)
        n_stages = comm.size
    to_float16(stage)
    sgd = chainer.optimizers.SGD(2.0**-4)
    optimizer = MixedPrecision(sgd, loss_scale=loss_scale, comm=comm, timeout=20).setup(
        stage
    )
    scale, n_finite, updates, weight = 2.0**10, 0, 0, np.float32(1)
    rng = np.random.RandomState(0)
    for step in range(N_OVERFLOW_STEPS):
        bad = rng.randint(comm.size) if rng.random() < 0.2 else -1
        what = [np.inf, -np.inf, np.nan][rng.randint(3)]
        for param in stage.params():
            param.grad = np.ones(param.shape, np.float16)
            param._loss_scale = float(loss_scale)
        if bad == comm.rank:
            link.W.grad[1, 2] = what
        optimizer.update()
        if bad >= 0:
            scale, n_finite = scale / 2, 0
            assert optimizer.gradient_norm == np.inf, (step, bad)
        else:
            # 8 numbers on each stage; replicas count once.
            norm = (8 * n_stages) ** 0.5 / scale
            assert optimizer.gradient_norm == norm, step
            weight -= np.float32(2.0**-4 / scale)
            updates, n_finite = updates + 1, n_finite + 1
            if n_finite == 3:
                scale, n_finite = 2 * scale, 0
        assert float(loss_scale) == scale, step
        assert (optimizer.t, optimizer.n_skipped) == (updates, step + 1 - updates)
    masters = optimizer._masters.by_path()
    assert (next(m for p, m in masters.items() if p.endswith("W")) == weight).all()


@pytest.mark.parametrize("replicas", [False, True])
def test_random_overflows_on_four_ranks(replicas):
    assert_on_ranks(4, random_overflows, replicas, timeout=90)


class Poison(chainer.Link):
    """Multiplies gradients, on their way back, by what they do not survive."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, x):
        return x if self.factor == 1 else F.scale(x, np.full(1, self.factor, x.dtype))


def overflow_on_one_stage(comm):
    """A forward that overflows in one stage of four, in the second step."""
    warnings.simplefilter("error")
    np.random.seed(0)
    poison = Poison()
    layers = [L.Linear(6, 6), L.Linear(6, 6), poison, L.Linear(6, 6), L.Linear(6, 4)]
    model = to_float16(Divisible(*layers))
    stage = model.divide(*Plan([0, 1, 3, 4, 5]).range(comm.rank))
    loss_scale = DynamicLossScale(1024)
    sgd = chainer.optimizers.MomentumSGD(0.1)
    optimizer = MixedPrecision(sgd, loss_scale=loss_scale, comm=comm, timeout=20).setup(
        stage
    )
    with Pipeline(
        stage, comm, n_microbatches=2, loss_scale=loss_scale, timeout=20
    ) as pipe:
        for step, (x, t) in enumerate(make_batches([8] * 3)):
            poison.factor = np.inf if step == 1 else 1.0
            before = [param.array.copy() for param in stage.params()]
            pipe.step(x, t)
            optimizer.update()
            same = [(a == p.array).all() for a, p in zip(before, stage.params())]
            assert all(same) if step == 1 else not any(same)
            assert float(loss_scale) == (1024 if step == 0 else 512)
    assert (optimizer.t, optimizer.n_skipped) == (2, 1)


def test_overflow_on_one_stage_skips_all():
    assert_on_ranks(4, overflow_on_one_stage)


def not_finite_at_the_smallest_scale(comm):
    optimizer = make_stage_optimizer(comm, DynamicLossScale(1))
    give_gradients(optimizer, np.nan if comm.rank == 1 else 1)
    optimizer.update()


def make_stage_optimizer(comm, loss_scale, timeout=20):
    stage = to_float16(Divisible(*[F.relu] * comm.rank, L.Linear(3, 2)))
    sgd = chainer.optimizers.SGD()
    return MixedPrecision(sgd, loss_scale=loss_scale, comm=comm, timeout=timeout).setup(
        stage
    )


def give_gradients(optimizer, value):
    for param in optimizer.target.params():
        param.grad = np.full(param.shape, value, np.float16)
        param._loss_scale = float(optimizer.loss_scale)


def a_rank_leaves_an_update_out(comm):
    optimizer = make_stage_optimizer(comm, 4, timeout=2)
    give_gradients(optimizer, 1)
    optimizer.update()
    if comm.rank == 0:
        optimizer.update()


def a_rank_makes_no_update(comm):
    optimizer = make_stage_optimizer(comm, 4, timeout=2)
    give_gradients(optimizer, 1)
    if comm.rank == 0:
        optimizer.update()


def a_rank_has_loaded_nothing(comm):
    optimizer = make_stage_optimizer(comm, 4)
    optimizer.t = 7 * comm.rank
    give_gradients(optimizer, 1)
    optimizer.update()


def different_scales(comm):
    optimizer = make_stage_optimizer(comm, 4 * 2**comm.rank)
    give_gradients(optimizer, 1)
    optimizer.update()


def float16_stage(comm):
    model = to_float16(Divisible(L.Linear(4, 5), L.Linear(5, 3)))
    return model.divide(comm.rank, comm.rank + 1)


def different_scales_of_the_pipeline(comm):
    Pipeline(
        float16_stage(comm),
        comm,
        n_microbatches=2,
        loss_scale=2 + comm.rank,
        timeout=20,
    )


def different_scales_in_a_step(comm):
    """As after an overflow that one rank has not told the others."""
    scale = DynamicLossScale(2**15)
    pipe = Pipeline(
        float16_stage(comm), comm, n_microbatches=2, loss_scale=scale, timeout=20
    )
    x, t = np.ones((4, 4), np.float32), np.zeros(4, np.int32)
    pipe.step(x, t)
    if comm.rank == 0:
        scale.overflowed(["/0/W"])
    pipe.evaluate(x, t)
    pipe.step(x, t)


def no_communicator(comm):
    MixedPrecision(chainer.optimizers.SGD(0.1)).setup(float16_stage(comm))


def no_communicator_and_stage_within(comm):
    stage = float16_stage(comm)
    optimizer = MixedPrecision(chainer.optimizers.SGD(0.1))
    optimizer.setup(chainer.ChainList(chainer.ChainList(stage)))
    pipe = Pipeline(
        stage, comm, n_microbatches=2, loss_scale=optimizer.loss_scale, timeout=20
    )
    samples = [(np.ones(4, np.float32), np.int32(0))] * 4
    PipelineUpdater(chainer.iterators.SerialIterator(samples, 2), optimizer, pipe)


@pytest.mark.parametrize(
    "function, words",
    [
        (
            not_finite_at_the_smallest_scale,
            "not finite at the smallest loss scale, 1: /1",
        ),
        (a_rank_leaves_an_update_out, "for rank 1 to update (rank 0 is here)"),
        (
            a_rank_makes_no_update,
            "for rank 1 to make the first update (rank 0 ",
        ),
        (
            a_rank_has_loaded_nothing,
            "DisagreementError: ranks are at different updates, between number 0 and 7",
        ),
        (
            different_scales,
            "DisagreementError: ranks have different loss scales, from 4 to 8",
        ),
        (different_scales_of_the_pipeline, "loss_scale differs between rank 0"),
        (different_scales_in_a_step, "scale the loss by 16384 up to 32768"),
        (no_communicator, "alone would skip steps that the other ranks take"),
        (
            no_communicator_and_stage_within,
            "in mixed precision, and would skip steps that the other ranks take",
        ),
    ],
)
def test_what_is_refused_and_why(function, words):
    assert words in refused_on_ranks(2, function).output


def warned(comm, loss_scale):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Pipeline(
            float16_stage(comm), comm, n_microbatches=2, loss_scale=loss_scale
        ) as pipe:
            # Inputs of any floating-point dtype are cast.
            x, t = np.ones((4, 4), np.float64), np.zeros(4, np.int32)
            assert np.isfinite(pipe.step(x, t)["loss"])
            assert pipe.predict(x).dtype == np.float16
    texts = [str(w.message) for w in caught]
    cure = [text for text in texts if "MixedPrecision(optimizer" in text]
    assert len(cure) == (loss_scale is None and comm.rank == 0), texts


def test_float16_without_mixed_precision_gets_a_warning():
    assert_on_ranks(2, warned, None)
    assert_on_ranks(2, warned, 4)


@pytest.mark.parametrize(
    "loss_scale, error", [(0, ValueError), (np.nan, ValueError), ("big", TypeError)]
)
def test_bad_loss_scale(loss_scale, error):
    with pytest.raises(error, match="loss_scale must be"):
        Pipeline(
            Divisible(L.Linear(2, 2)),
            MPI.COMM_SELF,
            n_microbatches=1,
            loss_scale=loss_scale,
        )


def test_pipeline_with_a_plain_optimizer():
    """Chainer's own optimizers divide by the scale that the parameters note."""
    weights = []
    for loss_scale in (None, 8.0):
        model = Divisible(L.Linear(6, 4, initialW=0))
        optimizer = chainer.optimizers.SGD(0.5).setup(model)
        with Pipeline(
            model, MPI.COMM_SELF, n_microbatches=2, loss_scale=loss_scale
        ) as pipe:
            for x, t in make_batches([8] * 2):
                pipe.step(x, t)
                optimizer.update()
        weights.append(model[0].W.array)
    np.testing.assert_array_equal(*weights)


def replicas_of_chainermn(comm):
    """ChainerMN's optimizer around MixedPrecision: it scales, exchanges, updates."""
    import chainermn

    communicator = chainermn.create_communicator("naive", comm)
    np.random.seed(comm.rank)
    model = to_float16(L.Linear(6, 4))
    sgd = chainer.optimizers.MomentumSGD(0.1)
    mixed = MixedPrecision(
        sgd, loss_scale=DynamicLossScale(**SCALE), comm=communicator, timeout=20
    )
    optimizer = chainermn.create_multi_node_optimizer(mixed, communicator).setup(model)
    lossfun = float32_loss(F.softmax_cross_entropy)
    for x, t in make_batches([8] * 12):
        mine = slice(comm.rank, None, comm.size)
        x, t = x[mine].astype(np.float16), t[mine]
        optimizer.update(lambda x, t: lossfun(model(x), t), x, t)
    # The first update only sends the weights of rank 0.
    assert optimizer.t + mixed.n_skipped == 11
    assert optimizer.t > 0 and mixed.n_skipped > 0
    weights = comm.allgather(model.W.array)
    np.testing.assert_array_equal(*weights)


def test_around_it_the_optimizer_of_chainermn():
    assert_on_ranks(2, replicas_of_chainermn)


def normalization_of_chainermn(comm):
    """Its scales stay float32, and squares beyond float16 do no harm."""
    import chainermn

    communicator = chainermn.create_communicator("naive", comm)
    link = chainermn.links.MultiNodeBatchNormalization(3, communicator)
    assert to_float16(link).gamma.dtype == np.float32
    rng = np.random.RandomState(comm.rank)
    x = rng.normal(400, 100, size=(8, 3)).astype(np.float16)
    y, expected = link(x), link(x.astype(np.float32))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, expected.array, rtol=2e-3, atol=1e-3)


def test_normalization_of_chainermn():
    assert_on_ranks(2, normalization_of_chainermn)
