"""Invariant 1 for what real networks are made of.

Skips, ties, dropout, batch normalization, recomputation, and layers of unusual kinds,
alone and together, against the undivided model in plain Chainer.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import link_hooks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divisible import Divisible, Plan, pop, stash
from divisible.schedules.recomputation import RECOMPUTATIONS
from pipeline import Pipeline
from tests.support.equivalence import (
    STAGES_PER_RANK,
    assert_close,
    check_equal,
    make_batches,
)
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

BATCHES = make_batches([8, 8, 5, 2])
CLASSES = 4


def subtract(y, x):
    return y - 2 * x


def skipping():
    """A skip within another, one to the next layer, and one of several tensors."""
    return Divisible(
        L.Linear(6, 6),
        stash("long"),
        F.tanh,
        stash("short"),
        L.Linear(6, 6),
        pop("short", F.add),
        lambda x: (x, x * 2),
        stash("pair"),
        F.add,
        L.Linear(6, 6),
        pop("pair", lambda y, a, b: F.tanh(y + a * b)),
        pop("long", subtract),
        L.Linear(6, CLASSES),
    )


def tied():
    """Ties of all kinds, next to each other and far apart."""
    model = Divisible(
        L.Linear(6, 5),
        F.tanh,
        L.Linear(5, 5),
        F.tanh,
        L.Linear(5, 5),
        L.Linear(5, 6),
        F.tanh,
        L.Linear(6, 5),
        L.Linear(5, CLASSES),
    )
    model.tie("/0/W", "/5/W", transpose=True)
    model.tie("/2/W", "/4/W")
    # As a user of Chainer would, without tie().
    model[7].W = model[0].W
    return model


def repeated():
    """One link at three positions, and a pair of links at two."""
    linear = L.Linear(6, 6)
    pair = chainer.Sequential(L.Linear(6, 6), F.tanh)
    return Divisible(
        linear, F.relu, pair, linear, F.tanh, pair, linear, L.Linear(6, CLASSES)
    )


def dropping():
    return Divisible(
        L.Linear(6, 9),
        F.dropout,
        F.relu,
        L.Linear(9, 9),
        lambda x: F.dropout(x, 0.3),
        # Its own positions are not those of the model.
        Divisible(L.Linear(9, 9), F.dropout, F.relu),
        F.dropout,
        L.Linear(9, CLASSES),
    )


def frozen():
    return Divisible(
        L.Linear(6, 6), F.tanh, L.Linear(6, 6), F.tanh, L.Linear(6, CLASSES)
    )


def bare():
    """Stages without parameters, and functions of functions."""
    return Divisible(
        F.tanh, lambda x: x * 1.5, L.Linear(6, CLASSES), lambda x: x + 1, F.sigmoid
    )


def lazy():
    """Sizes found, and weights drawn, at the first call."""

    def dropout_within():
        return chainer.Sequential(L.Linear(None, 6), F.dropout)

    return Divisible(
        dropout_within(), F.tanh, L.Linear(None, 5), dropout_within(), L.Linear(CLASSES)
    )


MODELS = {
    "skipping": skipping,
    "tied": tied,
    "repeated": repeated,
    "dropping": dropping,
    "frozen": frozen,
    "bare": bare,
    "lazy": lazy,
}


def check(comm, name, schedule, recompute, n_microbatches=3, transport="mpi"):
    make = MODELS[name]
    np.random.seed(3)
    n_layers = len(make())
    n_stages = STAGES_PER_RANK[schedule] * comm.size
    if n_stages > n_layers:
        return
    check_equal(
        comm,
        make,
        Plan.uniform(n_layers, n_stages).cuts,
        BATCHES,
        serially_in_microbatches=name in ("dropping", "lazy"),
        frozen=["/2"] if name == "frozen" else [],
        n_microbatches=n_microbatches,
        schedule=schedule,
        recompute=recompute,
        transport=transport,
    )


def some_combinations(comm, name):
    for schedule, recompute in (
        ("1f1b", "never"),
        ("1f1b", "always"),
        ("gpipe", "except_last"),
        ("zb_h1", "always"),
        ("zb_v", "never"),
        ("interleaved", "always"),
    ):
        check(comm, name, schedule, recompute)


@pytest.mark.parametrize("n_ranks", [3, *matrix(1, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, n_ranks):
    assert_on_ranks(n_ranks, some_combinations, name)


def all_combinations(comm, name, transport):
    for schedule in STAGES_PER_RANK:
        for recompute in RECOMPUTATIONS:
            for n_microbatches in (1, 3, 4):
                check(comm, name, schedule, recompute, n_microbatches, transport)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_all_combinations(name, n_ranks):
    assert_on_ranks(n_ranks, all_combinations, name, "mpi", timeout=300)


def test_skips_and_ties_over_chainermn():
    for name, schedule in (("skipping", "1f1b"), ("tied", "zb_h1")):
        assert_on_ranks(2, over_chainermn, name, schedule, timeout=120)


def over_chainermn(comm, name, schedule):
    check(comm, name, schedule, "always", transport="chainermn")


# -- random graphs -----------------------------------------------------------------


@st.composite
def graphs(draw):
    """Layers of one width, between which skips and ties lead at random."""
    n = draw(st.integers(4, 9))
    skips = draw(
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(sorted),
            max_size=3,
        )
    )
    ties = draw(
        st.lists(
            st.tuples(
                st.integers(0, n - 1), st.integers(0, n - 1), st.booleans()
            ).filter(lambda tie: tie[0] < tie[1]),
            max_size=3,
        )
    )
    schedule = draw(st.sampled_from(sorted(STAGES_PER_RANK)))
    n_layers = 2 * n + 1 + 2 * len(skips)
    return {
        "n": n,
        "skips": skips,
        "ties": ties,
        "activations": draw(
            st.lists(st.sampled_from(["tanh", "dropout"]), min_size=n, max_size=n)
        ),
        "recomputed": sorted(draw(st.sets(st.integers(0, n - 1)))),
        "schedule": schedule,
        "recompute": draw(st.sampled_from(RECOMPUTATIONS)),
        "n_microbatches": draw(st.integers(1, 5)),
        "cuts": draw(
            st.lists(st.integers(1, n_layers - 1), min_size=7, max_size=7, unique=True)
        ),
        "seed": draw(st.integers(0, 2**40)),
    }


def graph_model(case):
    model = Divisible()
    linears = []
    for i in range(case["n"]):
        for k, (start, _) in enumerate(case["skips"]):
            if start == i:
                model.append(stash(f"skip{k}"))
        linears.append(len(model))
        model.append(L.Linear(5, 5), recompute=i in case["recomputed"])
        model.append(getattr(F, case["activations"][i]))
        for k, (_, end) in enumerate(case["skips"]):
            if end == i:
                model.append(pop(f"skip{k}", F.add))
    model.append(L.Linear(5, 3))
    for a, b, transpose in case["ties"]:
        own = dict(model.namedparams())
        a, b = f"/{linears[a]}/W", f"/{linears[b]}/W"
        # A tie to what is tied already is refused, and tested elsewhere.
        if a in own and b in own and own[a] is not own[b]:
            model.tie(a, b, transpose)
    return model


def random_graphs(comm, cases):
    for case in cases:
        n_stages = STAGES_PER_RANK[case["schedule"]] * comm.size
        n_layers = len(graph_model(case))
        check_equal(
            comm,
            lambda case=case: graph_model(case),
            [0, *sorted(case["cuts"][: n_stages - 1]), n_layers],
            make_batches([7, 3], 5, 3),
            lr=0.05,
            serially_in_microbatches=True,
            n_microbatches=case["n_microbatches"],
            schedule=case["schedule"],
            recompute=case["recompute"],
            seed=case["seed"],
        )


def in_few_starts(max_examples):
    """Settings for tests that start ranks for each example, with many cases in it."""
    return settings(
        max_examples=max_examples,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


EIGHT_GRAPHS = st.lists(graphs(), min_size=8, max_size=8)


@in_few_starts(2)
@given(st.integers(2, 3), EIGHT_GRAPHS)
def test_random_graphs(n_ranks, cases):
    assert_on_ranks(n_ranks, random_graphs, cases, timeout=120)


@pytest.mark.matrix
@in_few_starts(60)
@given(st.integers(1, 4), EIGHT_GRAPHS)
def test_many_random_graphs(n_ranks, cases):
    assert_on_ranks(n_ranks, random_graphs, cases, timeout=120)


# -- batch normalization -----------------------------------------------------------


def normalizing():
    return Divisible(
        L.BatchNormalization(6),
        L.Linear(6, 5),
        L.BatchNormalization(5, decay=0.7),
        F.tanh,
        L.Linear(5, 5),
        L.BatchRenormalization(5, rmax=1.5, dmax=0.5),
        L.Linear(5, CLASSES),
    )


class Inputs(chainer.LinkHook):
    """Keeps what batch normalization is called with."""

    name = "Inputs"

    def __init__(self):
        self.by_link = {}

    def forward_preprocess(self, args):
        if isinstance(args.link, L.BatchNormalization):
            x = chainer.as_array(args.args[0])
            self.by_link.setdefault(args.link.name, []).append(x.copy())


def serial_with_deferred_statistics(model, batches, n_microbatches):
    """An independent reference, with averages that move by all inputs of a step."""
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    for x, t in batches:
        model.cleargrads()
        links = {link.name: link for link in model.children()}
        kept = {
            name: (link.avg_mean.copy(), link.avg_var.copy())
            for name, link in links.items()
            if isinstance(link, L.BatchNormalization)
        }
        with Inputs() as inputs:
            for x_part, t_part in zip(
                np.array_split(x, n_microbatches), np.array_split(t, n_microbatches)
            ):
                loss = F.softmax_cross_entropy(model(x_part), t_part)
                loss.grad = np.full_like(loss.array, len(x_part) / len(x))
                loss.backward()
                # The next microbatch starts from the same averages.
                for name, (mean, variance) in kept.items():
                    links[name].avg_mean[...] = mean
                    links[name].avg_var[...] = variance
        for name, seen in inputs.by_link.items():
            link, seen = links[name], np.concatenate(seen)
            link.avg_mean *= link.decay
            link.avg_mean += (1 - link.decay) * seen.mean(axis=0)
            link.avg_var *= link.decay
            link.avg_var += (1 - link.decay) * seen.var(axis=0, ddof=1)
        optimizer.update()
    return model


def averages(model):
    return {
        f"{path}/{name}": vars(link)[name]
        for path, link in model.namedlinks()
        for name in ("avg_mean", "avg_var")
        if name in vars(link)
    }


def batch_statistics(comm, recompute):
    batches = make_batches([12] * 8)
    np.random.seed(0)
    expected = averages(serial_with_deferred_statistics(normalizing(), batches, 4))
    for cuts in Plan.uniform(7, comm.size).cuts, [0, *range(1, comm.size), 7]:
        np.random.seed(0)
        stage = normalizing().divide(*Plan(cuts).range(comm.rank))
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
        with Pipeline(
            stage, comm, n_microbatches=4, recompute=recompute, timeout=20
        ) as pipe:
            for x, t in batches:
                pipe.step(x, t)
                optimizer.update()
        for path, average in averages(stage).items():
            assert_close(average, expected[path], rtol=1e-4, atol=1e-5, what=path)
        if comm.rank > 0:
            continue
        # A first layer sees the same inputs in the undivided model.
        model = normalizing()
        for x, _ in batches:
            model[0](x)
        for path, average in averages(model).items():
            if path.startswith("/0/"):
                assert_close(averages(stage)[path], average, rtol=1e-5, what=path)


@pytest.mark.parametrize("recompute", RECOMPUTATIONS)
@pytest.mark.parametrize("n_ranks", [3, *matrix(1, 2)])
def test_running_averages_move_once_a_minibatch(n_ranks, recompute):
    """torchgpipe #9 and #14, chainermn #203."""
    assert_on_ranks(n_ranks, batch_statistics, recompute)


def undeferred(comm, recompute):
    """Each microbatch moves them, as in a serial loop over microbatches."""
    batches = make_batches([12] * 3)
    np.random.seed(0)
    model = normalizing()
    del model[5]
    stage = model.divide(*Plan.uniform(6, comm.size).range(comm.rank))
    with Pipeline(
        stage,
        comm,
        n_microbatches=4,
        recompute=recompute,
        deferred_batch_norm=False,
        timeout=20,
    ) as pipe:
        for x, t in batches:
            pipe.step(x, t)
    np.random.seed(0)
    model = normalizing()
    del model[5]
    for x, _ in batches:
        for part in np.array_split(x, 4):
            model(part)
    expected = averages(model)
    for path, average in averages(stage).items():
        assert_close(average, expected[path], rtol=1e-5, atol=1e-6, what=path)


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_statistics_of_each_microbatch(recompute):
    assert_on_ranks(2, undeferred, recompute)


def multi_node(comm, schedule):
    """Two replicas of two stages; normalization looks over both replicas."""
    import chainermn

    data = comm.Split(comm.rank % 2, comm.rank)
    line = comm.Split(comm.rank // 2, comm.rank)
    between = chainermn.create_communicator("naive", data)
    x, t = make_batches([16])[0]
    np.random.seed(0)
    model = Divisible(
        chainermn.links.MultiNodeBatchNormalization(6, between), L.Linear(6, CLASSES)
    )
    stage = model.divide(line.rank, line.rank + 1)
    with Pipeline(
        stage, line, n_microbatches=2, schedule=schedule, recompute="always", timeout=20
    ) as pipe:
        replica = slice(comm.rank // 2, None, 2)
        pipe.step(x[replica], t[replica])
    if line.rank == 0:
        assert_close(stage[0].avg_mean, 0.1 * x.mean(axis=0), rtol=1e-4, atol=1e-6)
        assert stage[0].N == 0


def test_multi_node_batch_normalization():
    assert_on_ranks(4, multi_node, "gpipe", timeout=60)


# -- unusual losses, reports, configuration ----------------------------------------


class ScaledLoss(chainer.Chain):
    """A loss with a parameter of its own, and noise."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.scale = chainer.Parameter(np.ones((), np.float32))

    def forward(self, y, t):
        chainer.report({"scale": self.scale}, self)
        y = F.dropout(y, 0.2)
        return F.softmax_cross_entropy(y * F.broadcast_to(self.scale, y.shape), t)


class Counting(chainer.Link):
    """Its output depends on how often it was called, as a stateful layer's does."""

    def __init__(self):
        super().__init__()
        self.n = 0
        self.register_persistent("n")

    def forward(self, x):
        self.n += 1
        return x * (1 + 0.1 * self.n)


def side_effects(comm):
    """Recomputation finds what the forward found, and leaves no trace."""
    gradients, states = [], []
    for recompute in ("never", "always"):
        np.random.seed(0)
        normalize = L.BatchRenormalization(5, rmax=1.5, dmax=0.5)
        mean, variance = np.zeros(5, np.float32), np.ones(5, np.float32)
        one, zero = np.ones(5, np.float32), np.zeros(5, np.float32)
        linear = L.Linear(6, 5)
        linear.add_hook(link_hooks.SpectralNormalization())
        model = Divisible(
            linear,
            Counting(),
            normalize,
            lambda x, m=mean, v=variance, o=one, z=zero: F.batch_normalization(
                x, o, z, running_mean=m, running_var=v
            ),
            L.Linear(5, CLASSES),
        )
        stage = model.divide(*Plan.uniform(5, comm.size).range(comm.rank))
        for deferred in (True, False):
            with Pipeline(
                stage,
                comm,
                n_microbatches=4,
                schedule="gpipe",
                recompute=recompute,
                deferred_batch_norm=deferred,
                timeout=20,
            ) as pipe:
                pipe.step(*BATCHES[0])
            gradients.append({path: p.grad.copy() for path, p in stage.namedparams()})
            states.append([*averages(stage).values()])
            if deferred:
                states[-1] += [mean.copy(), variance.copy()]
    n = len(gradients) // 2
    for expected, actual in zip(gradients[:n], gradients[n:]):
        for path, gradient in expected.items():
            np.testing.assert_array_equal(actual[path], gradient)
    for expected, actual in zip(states[:n], states[n:]):
        for a, b in zip(actual, expected):
            np.testing.assert_array_equal(a, b)


def test_recomputation_of_layers_that_keep_something():
    for n_ranks in (1, 2):
        assert_on_ranks(n_ranks, side_effects)


class Reporting(chainer.Link):
    def forward(self, x):
        chainer.report({"mean": F.mean(x)}, self)
        chainer.report({"first": chainer.as_array(x)[0, 0]})
        return x


def reports(comm):
    model = Divisible(Reporting(), L.Linear(6, 5), Reporting(), L.Linear(5, CLASSES))
    stage = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
    loss = ScaledLoss()
    optimizer = chainer.optimizers.SGD(0.1).setup(loss)
    x, t = BATCHES[2]
    with Pipeline(
        stage, comm, n_microbatches=3, lossfun=loss, recompute="always", timeout=20
    ) as pipe:
        for _ in range(2):
            result = pipe.step(x, t)
            assert set(result) == {
                "loss",
                "accuracy",
                "first",
                "/0/mean",
                "/2/mean",
                "/loss/scale",
            }
            assert_close(result["/0/mean"], x.mean(), rtol=1e-5)
            assert_close(result["/loss/scale"], float(loss.scale.array), rtol=1e-6)
            gathered = comm.allgather(result)
            assert gathered == [gathered[0]] * comm.size
            if pipe.is_last:
                assert loss.scale.grad is not None
                optimizer.update()
            loss.scale.array[...] = comm.bcast(loss.scale.array, comm.size - 1)


def reports_of_others(comm):
    """Of links that are in no stage, inside of a trainer's scope, only in training."""
    inner = Reporting()

    def only_in_training(x):
        if chainer.config.train:
            chainer.report({"trains": 1.0})
        return inner(x)

    classifier = chainer.Chain(report=Reporting())

    def loss(y, t):
        classifier.report(y)
        return F.softmax_cross_entropy(y, t)

    model = Divisible(only_in_training, L.Linear(6, CLASSES))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    observation = {}
    options = {"lossfun": loss, "recompute": "always", "timeout": 20}
    with (
        chainer.Reporter().scope(observation),
        Pipeline(stage, comm, n_microbatches=2, **options) as pipe,
    ):
        for _ in range(3):
            assert pipe.step(*BATCHES[0])["trains"] == 1.0
            evaluated = pipe.evaluate(*BATCHES[0])
            assert "trains" not in evaluated
            assert "/Reporting/mean" in evaluated
    assert not observation


def test_reports_of_links_outside_of_the_model():
    for n_ranks in (1, 2):
        assert_on_ranks(n_ranks, reports_of_others)


def without_backprop(comm):
    """A step is a step: it computes gradients, whatever the configuration."""
    model = Divisible(L.Linear(6, CLASSES))
    with Pipeline(model, comm, n_microbatches=2, timeout=20) as pipe:
        pipe.step(*BATCHES[0])
        expected = model[0].W.grad.copy()
        with chainer.no_backprop_mode():
            pipe.step(*BATCHES[0])
        np.testing.assert_array_equal(model[0].W.grad, expected)


def test_a_step_in_no_backprop_mode():
    assert_on_ranks(1, without_backprop)


def scalars(comm):
    model = Divisible(
        L.Linear(6, 5),
        lambda x: (F.sum(x), x),
        lambda s, x: x * s,
        L.Linear(5, CLASSES),
    )
    stage = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        assert pipe.step(*BATCHES[0])["loss"] > 0


def test_scalars_between_stages():
    assert_on_ranks(2, scalars)


def test_reports_and_a_loss_with_parameters():
    """torchtitan #547: every rank reports."""
    for n_ranks in (1, 3):
        assert_on_ranks(n_ranks, reports)


def configuration(comm):
    seen = []

    def look(x):
        seen.append((chainer.config.train, chainer.config.dtype, chainer.config.mine))
        return x

    model = Divisible(look, L.Linear(6, 5), look, L.Linear(5, CLASSES))
    stage = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
    x, t = BATCHES[0]
    chainer.global_config.mine = "global"
    with Pipeline(
        stage, comm, n_microbatches=1, recompute="always", timeout=20
    ) as pipe:
        with chainer.using_config("mine", "local"):
            with chainer.using_config("dtype", np.dtype(np.float64)):
                pipe.evaluate(x, t)
            with chainer.using_config("train", False):
                pipe.step(x, t)
        pipe.step(x, t)
    evaluated, *trained = dict.fromkeys(seen)
    assert evaluated == (False, np.float64, "local")
    assert trained == [
        (False, np.float32, "local"),
        (True, np.float32, "global"),
    ]


def test_configuration_is_that_of_the_call():
    assert_on_ranks(2, configuration)


# -- random state ------------------------------------------------------------------


def random_state(comm, folder):
    """The user's own stream goes on, and a loaded pipeline draws what comes next."""
    x, t = BATCHES[0]
    np.random.seed(0)
    stage = dropping().divide(*Plan.uniform(8, comm.size).range(comm.rank))
    before = np.random.get_state()[1].copy()
    options = {"n_microbatches": 3, "timeout": 20}
    with Pipeline(stage, comm, **options, seed=5) as pipe:
        losses = [pipe.step(x, t)["loss"] for _ in range(4)]
        np.testing.assert_array_equal(np.random.get_state()[1], before)
        assert len(set(losses)) == 4
        chainer.serializers.save_npz(f"{folder}/{comm.size}-{comm.rank}.npz", pipe)
    with Pipeline(stage, comm, **options, seed=5) as pipe:
        assert [pipe.step(x, t)["loss"] for _ in range(2)] == losses[:2]
        # Evaluation does not count.
        pipe.evaluate(x, t)
        assert pipe.step(x, t)["loss"] == losses[2]
        chainer.serializers.load_npz(f"{folder}/{comm.size}-{comm.rank}.npz", pipe)
        assert pipe.n_steps == 4
        loaded = pipe.step(x, t)["loss"]
    with Pipeline(stage, comm, **options, seed=5) as pipe:
        assert [pipe.step(x, t)["loss"] for _ in range(5)] == [*losses, loaded]
    with Pipeline(stage, comm, **options, seed=6) as pipe:
        assert pipe.step(x, t)["loss"] != losses[0]


def test_random_state(tmp_path):
    """pytorch #55036: dropout does not depend on the cut."""
    for n_ranks in (1, 3):
        assert_on_ranks(n_ranks, random_state, str(tmp_path))
