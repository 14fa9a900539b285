"""Steps with two weight versions: gradients one step late, and no flush."""

from __future__ import annotations

import os
from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers
from mpi4py import MPI

from data_parallel import Grid
from divisible import Divisible
from divisible.schedules import Schedule, pipedream_2bw
from mixed_precision import MixedPrecision
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    Rebalance,
    load_snapshot,
    save_snapshot,
    snapshot,
)
from pipeline.step.late_dict import LateDict
from tests.mpi.pipeline.step.test_overlap import FEATURES
from tests.support.equivalence import (
    assert_close,
    make_batches,
    shared,
    train_in_microbatches,
)
from tests.support.mpiexec import assert_on_ranks, on_ranks
from tests.support.overlap import N_MICROBATCHES, cut, deep_mlp

NAME = "pipedream_2bw"
BATCHES = make_batches([8] * 9 + [3], n_in=8)
RULES = {
    "sgd": partial(optimizers.SGD, 0.1),
    "momentum": partial(optimizers.MomentumSGD, 0.05),
    "adam": partial(optimizers.Adam, 0.01),
    "rmsprop": partial(optimizers.RMSprop, 0.01),
}


class Shuffled(Divisible):
    """Layers that use their weights in other ways than a product, and draw numbers."""

    def __init__(self):
        super().__init__()
        self.append(L.Linear(8, 8))
        self.append(F.dropout)
        self.append(L.BatchNormalization(8), recompute=True)
        self.append(Transposed(8))
        self.append(F.tanh)
        self.append(L.Scale(W_shape=(8,), bias_term=True), recompute=True)
        self.append(L.Linear(8, 4))


class Transposed(chainer.Chain):
    """A product with a view of the weights, which the graph holds."""

    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(chainer.initializers.LeCunNormal(), (n, n))

    def forward(self, x):
        return F.matmul(x, F.transpose(F.reshape(self.W, self.W.shape)))


MODELS = {"mlp": deep_mlp, "shuffled": Shuffled}


def add_hooks(optimizer, hooks):
    if "decay" in hooks:
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    if "clip" in hooks:
        optimizer.add_hook(optimizer_hooks.GradientClipping(0.5))


def delayed(model, rule, hooks, batches, gradients_of):
    """Stock Chainer's optimizer with gradients one step late.

    ``gradients_of(x, t)`` returns the loss, and leaves gradients in ``param.grad``.
    """
    optimizer = RULES[rule]().setup(model)
    add_hooks(optimizer, hooks)
    params, losses, waiting = [*model.params()], [], None
    for batch in [*batches, None]:
        if batch is not None:
            # Weights are those before the update with the last gradient.
            losses.append(gradients_of(*batch))
            complete = [param.grad.copy() for param in params]
        if waiting is not None:
            for param, gradient in zip(params, waiting):
                param.grad = gradient
            optimizer.update()
        waiting = complete
    arrays = {path: param.array for path, param in model.namedparams()}
    return np.array(losses), arrays, averages(model)


def averages(model):
    """Returns the running averages of batch normalization, by path."""
    return {
        f"{path}/{name}": array
        for path, link in model.namedlinks()
        if isinstance(link, L.BatchNormalization)
        for name, array in (("mean", link.avg_mean), ("var", link.avg_var))
    }


def by_pipeline(model, rule, hooks, batches, **options):
    """The reference with the kernels, random numbers and sums of a pipeline."""
    with Pipeline(model, MPI.COMM_SELF, **options) as pipe:
        return delayed(
            model, rule, hooks, batches, lambda x, t: pipe.step(x, t)["loss"]
        )


def by_chainer(model, rule, hooks, batches, n_microbatches):
    """The reference in plain Chainer, for models without random numbers."""

    def gradients_of(x, t):
        model.cleargrads()
        mean = 0.0
        for parts in zip(*(np.array_split(a, n_microbatches) for a in (x, t))):
            if len(parts[0]):
                weight = len(parts[0]) / len(x)
                loss = F.softmax_cross_entropy(model(parts[0]), parts[1])
                loss.grad = np.full_like(loss.array, weight)
                loss.backward()
                mean += weight * float(loss.array)
        return mean

    return delayed(model, rule, hooks, batches, gradients_of)


def make(comm, model="mlp", rule="sgd", hooks=(), **options):
    """Returns a pipeline with two weight versions, and an optimizer."""
    np.random.seed(0)
    made = MODELS[model]() if isinstance(model, str) else model
    stages = cut(getattr(comm, "pipeline", comm), NAME, made)
    options = {
        "n_microbatches": N_MICROBATCHES,
        "schedule": NAME,
        "timeout": 60,
        **options,
    }
    pipe = Pipeline(stages, comm, **options)
    optimizer = pipe.setup(RULES[rule]())
    add_hooks(optimizer, hooks)
    return pipe, optimizer


def train(pipe, optimizer, batches, between=lambda number: None):
    """Returns the losses; updates after each step, and after a flush."""
    losses = []
    for number, batch in enumerate(batches):
        losses.append(pipe.step(*batch))
        optimizer.update()
        between(number)
    assert pipe.flush()
    optimizer.update()
    return np.array([result["loss"] for result in losses])


def check(pipe, losses, expected, rtol=None):
    expected_losses, arrays, expected_averages = expected
    for stage in pipe.stages.values():
        for path, param in stage.namedparams():
            if rtol is None:
                np.testing.assert_array_equal(param.array, arrays[path], path)
            else:
                assert_close(param.array, arrays[path], rtol, 1e-6, path)
        for path, array in averages(stage).items():
            np.testing.assert_array_equal(array, expected_averages[path], path)
    if rtol is None:
        np.testing.assert_array_equal(losses, expected_losses)
    else:
        assert_close(losses, expected_losses, rtol)


CASES = [
    ("mlp", "sgd", ()),
    ("mlp", "momentum", ("decay",)),
    ("mlp", "adam", ("decay",)),
    ("mlp", "rmsprop", ()),
    ("mlp", "sgd", ("clip",)),
    ("shuffled", "adam", ()),
]


# Steps of whole minibatches, and a last one of fewer samples than microbatches.
FEWER = [*BATCHES[:4], BATCHES[-1]]


@pytest.mark.parametrize(
    "n_ranks",
    [
        pytest.param(1, marks=pytest.mark.matrix),
        2,
        pytest.param(3, marks=pytest.mark.matrix),
        4,
    ],
)
def test_equals_the_serial_reference_with_delayed_updates(n_ranks):
    assert_on_ranks(n_ranks, _train)


def references(model, rule, hooks):
    """Returns the references by a pipeline, by Chainer, and losses without a delay."""
    np.random.seed(0)
    options = {"n_microbatches": N_MICROBATCHES}
    by_pipe = by_pipeline(MODELS[model](), rule, hooks, FEWER, **options)
    if model != "mlp":
        return by_pipe, None, None
    np.random.seed(0)
    plain = by_chainer(deep_mlp(), rule, hooks, FEWER, N_MICROBATCHES)
    np.random.seed(0)
    undelayed, _ = train_in_microbatches(deep_mlp(), FEWER, N_MICROBATCHES)
    return by_pipe, plain, undelayed[:, 0]


def _train(comm):
    expected = shared(comm, [partial(references, *case) for case in CASES])
    for (model, rule, hooks), (by_pipe, plain, undelayed) in zip(CASES, expected):
        pipe, optimizer = make(comm, model, rule, hooks)
        losses = train(pipe, optimizer, FEWER)
        assert ("clip" in hooks) == ("GradientClipping" in str(pipe)) or comm.size == 1
        pipe.close()
        # The norm of all gradients adds up in another order.
        check(pipe, losses, by_pipe, 1e-5 if "clip" in hooks else None)
        if model == "mlp":
            check(pipe, losses, plain, 2e-4)
            assert not np.allclose(losses, undelayed, rtol=1e-4)


def test_what_happens_between_steps_changes_no_bit():
    assert_on_ranks(3, _between_steps)


def reused(batches):
    """Yields minibatches in arrays that are written anew for each of them."""
    arrays = [array.copy() for array in batches[0]]
    for batch in batches:
        n_samples = len(batch[0])
        for array, content in zip(arrays, batch):
            array[:n_samples] = content
        yield tuple(array[:n_samples] for array in arrays)


def _between_steps(comm):
    def run(between, batches=FEWER, **options):
        pipe, optimizer = make(comm, "shuffled", "momentum", **options)
        losses = train(pipe, optimizer, batches, partial(between, pipe))
        arrays = [p.array for stage in pipe.stages.values() for p in stage.params()]
        pipe.close()
        return [losses, *arrays]

    def nothing(pipe, number):
        pass

    def some(pipe, number):
        if number in (0, 2):
            pipe.evaluate(*BATCHES[0])
        if number == 3:
            pipe.predict(BATCHES[0][0])
        if number == 4:
            assert pipe.timeline().n_ranks == comm.size
            comm.Barrier()

    expected = run(nothing)
    for between, options in (
        (some, {}),
        (nothing, {"recompute": "always"}),
        (nothing, {"batches": reused(FEWER)}),
        (nothing, {"overlap_minibatches": False}),
        (some, {"overlap_minibatches": True}),
        (some, {"n_microbatches": N_MICROBATCHES, "schedule": parsed(comm.size)}),
    ):
        for one, two in zip(run(between, **options), expected):
            np.testing.assert_array_equal(one, two)


def parsed(n_ranks):
    return Schedule.parse(str(pipedream_2bw(n_ranks, N_MICROBATCHES)))


def test_fewer_microbatches_than_ranks():
    assert_on_ranks(4, _few_microbatches)


def _few_microbatches(comm):
    for m in (1, 2, 3):
        pipe, optimizer = make(comm, "mlp", "adam", n_microbatches=m)
        losses = train(pipe, optimizer, BATCHES[:5])
        pipe.close()
        np.random.seed(0)
        given = deep_mlp(), "adam", (), BATCHES[:5]
        check(pipe, losses, by_pipeline(*given, n_microbatches=m))


def test_calls_and_results():
    assert_on_ranks(3, _calls)


def _calls(comm):
    pipe, optimizer = make(comm, "mlp", "adam")
    text = str(pipe)
    assert "weight versions" in text and "do not overlap" not in text
    rows = [line.split() for line in text.splitlines()[2:]]
    assert [row[-1] for row in rows] == ["2", "2", "1"]
    assert not pipe.flush()
    params = [p for stage in pipe.stages.values() for p in stage.params()]
    before = [param.array.copy() for param in params]
    result = pipe.step(*BATCHES[0])
    assert type(result) is LateDict
    assert all(param.grad is None for param in params)
    optimizer.update()
    for param, array in zip(params, before):
        np.testing.assert_array_equal(param.array, array)
        assert param.update_rule.t == 0
    assert pipe.flush() and not pipe.flush()
    optimizer.update()
    assert [param.update_rule.t for param in params] == [0] * len(params)
    pipe.step(*BATCHES[1])
    optimizer.update()
    pipe.step(*BATCHES[2])
    assert all(param.grad is not None for param in params)
    optimizer.update()
    assert [param.update_rule.t for param in params] == [1] * len(params)
    frozen = params[0].update_rule
    frozen.enabled = False
    pipe.step(*BATCHES[3])
    optimizer.update()
    assert not frozen.enabled and frozen.t == 1
    pipe.close()


def test_snapshots_where_nothing_waits(tmp_path):
    assert_on_ranks(2, _snapshots, str(tmp_path))


def _snapshots(comm, directory):
    path = os.path.join(directory, "saved")
    pipe, optimizer = make(comm, "shuffled", "adam")
    for batch in BATCHES[:4]:
        pipe.step(*batch)
        optimizer.update()
    with pytest.raises(ValueError, match=r"gradient of step 4.*call pipe.flush\(\)"):
        save_snapshot(path, pipe, optimizer)
    assert pipe.flush()
    optimizer.update()
    # Another flush has no gradient. A run that resumes updates parameters nevertheless.
    assert not pipe.flush()
    optimizer.update()
    save_snapshot(path, pipe, optimizer)
    expected = train(pipe, optimizer, BATCHES[4:])
    arrays = [p.array for stage in pipe.stages.values() for p in stage.params()]
    pipe.close()
    pipe, optimizer = make(comm, "shuffled", "adam")
    # A load drops the gradient that waits.
    pipe.step(*BATCHES[0])
    load_snapshot(path, pipe, optimizer)
    np.testing.assert_array_equal(train(pipe, optimizer, BATCHES[4:]), expected)
    again = [p.array for stage in pipe.stages.values() for p in stage.params()]
    for one, two in zip(again, arrays):
        np.testing.assert_array_equal(one, two)
    pipe.close()


def test_a_trainer(tmp_path):
    assert_on_ranks(2, _train_by_a_trainer, str(tmp_path))


def _train_by_a_trainer(comm, out):
    def trainer_of(pipe, optimizer):
        pairs = [*zip(*(np.concatenate(each) for each in zip(*BATCHES[:4])))]
        iterator = chainer.iterators.SerialIterator(pairs, 8, shuffle=False)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        return chainer.training.Trainer(updater, (6, "iteration"), out=out), iterator

    pipe, optimizer = make(comm, "mlp", "momentum")
    trainer, iterator = trainer_of(pipe, optimizer)
    test = chainer.iterators.SerialIterator(
        iterator.dataset, 8, repeat=False, shuffle=False
    )
    evaluator = PipelineEvaluator(test, pipe)
    trainer.extend(evaluator, trigger=(2, "iteration"))
    trainer.extend(chainer.training.extensions.LogReport(trigger=(1, "iteration")))
    trainer.run()
    assert pipe.flush()
    optimizer.update()
    np.random.seed(0)
    batches = [BATCHES[number % 4] for number in range(6)]
    options = {"n_microbatches": N_MICROBATCHES}
    expected = by_pipeline(deep_mlp(), "momentum", (), batches, **options)
    log = trainer.get_extension("LogReport").log
    check(pipe, [each["main/loss"] for each in log], expected)
    pipe.close()
    for extension, words in (
        (
            snapshot(),
            r"snapshot\(\) does not go together with schedule 'pipedream_2bw'",
        ),
        (Rebalance(deep_mlp), "'pipedream_2bw' does not go together with Rebalance"),
    ):
        pipe, optimizer = make(comm)
        trainer, _ = trainer_of(pipe, optimizer)
        trainer.extend(extension, trigger=(1, "iteration"))
        with pytest.raises(ValueError, match=words):
            trainer.run()
        pipe.close()


def test_features_are_refused():
    assert_on_ranks(2, _check_refusals)


def _check_refusals(comm):
    refused = {
        **{name: FEATURES[name] for name in FEATURES if "overlap" not in name},
        "replicas": lambda comm: (Grid(comm, 1), {}),
        "hold_in": lambda comm: (comm, {"hold_in": "disk"}),
        "hold_dtype": lambda comm: (comm, {"hold_dtype": "bfloat16"}),
        "weight_groups='auto'": lambda comm: (comm, {"weight_groups": "auto"}),
        "weight_groups": lambda comm: (comm, {"weight_groups": 2}),
        "transport='chainermn'": lambda comm: (comm, {"transport": "chainermn"}),
    }
    for feature, options_of in refused.items():
        of_pipe, options = options_of(comm)
        options.pop("rule", None)
        model = options.pop("model", "mlp")
        with pytest.raises(ValueError, match=NAME) as refusal:
            make(of_pipe, model, **options)
        assert feature in str(refusal.value)
    # Where other schedules confirm updates later.
    of_pipe, options = FEATURES["loss_scale"](comm)
    options.pop("rule")
    with pytest.raises(ValueError, match=f"{NAME}.*loss_scale"):
        make(of_pipe, overlap_minibatches=True, **options)
    pipe, _ = make(comm)
    stages = [*pipe.stages.values()]
    mixed = MixedPrecision(optimizers.SGD(0.1), comm=comm).setup(stages)
    pipe.global_hooks(mixed)
    with pytest.raises(ValueError, match="together with MixedPrecision"):
        pipe.step(*BATCHES[0])
    pipe, _ = make(comm, hooks=["clip"], overlap_minibatches=True)
    with pytest.raises(ValueError, match="True does not go together with Gradient"):
        pipe.step(*BATCHES[0])
    comm.Barrier()


def test_an_update_of_arrays_that_backwards_need_is_refused():
    assert_on_ranks(2, _update_former_arrays)


def _update_former_arrays(comm):
    """An optimizer that the pipeline does not know uses the same arrays again."""
    pipe, _ = make(comm)
    params = [p for stage in pipe.stages.values() for p in stage.params()]
    arrays = [param.array for param in params]
    pipe.step(*BATCHES[0])
    for param, array in zip(params, arrays):
        param.array = array
    if pipe.is_first:
        with pytest.raises(ValueError, match="updated the former array of /0/W"):
            pipe.step(*BATCHES[1])
    comm.Barrier()


def end_without_a_flush(comm, width):
    """Messages of the carried backwards are large, and are under way."""
    model = Divisible(*(L.Linear(width, width) for _ in range(6)), L.Linear(width, 4))
    pipe, optimizer = make(comm, model)
    batches = make_batches([256] * 3, n_in=width)
    for batch in batches:
        pipe.step(*batch)
        optimizer.update()
    print("ended", flush=True)


def test_a_script_may_end_without_a_flush():
    result = on_ranks(3, end_without_a_flush, 400)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("ended") == 3


class Failing(chainer.Link):
    """Fails in its backward number ``n_left``."""

    def __init__(self, n_left):
        super().__init__()
        self.n_left = n_left

    def forward(self, x):
        return _Failing(self).apply((x,))[0]


class _Failing(chainer.FunctionNode):
    def __init__(self, link):
        self._link = link

    def forward(self, inputs):
        return (inputs[0].copy(),)

    def backward(self, indexes, gradients):
        self._link.n_left -= 1
        if not self._link.n_left:
            raise OSError("disk on fire")
        return gradients


def fail_in_a_carried_backward(comm):
    linear = [L.Linear(8, 8) for _ in range(4)]
    # The first stage carries its last two backwards.
    model = Divisible(linear[0], Failing(3), *linear[1:], L.Linear(8, 4))
    pipe, optimizer = make(comm, model)
    for batch in BATCHES:
        pipe.step(*batch)
        optimizer.update()


def leave_early(comm):
    pipe, optimizer = make(comm)
    for batch in BATCHES[: 4 if comm.rank == 1 else 10]:
        pipe.step(*batch)
        optimizer.update()


def test_no_rank_waits_for_ever():
    result = on_ranks(3, fail_in_a_carried_backward, timeout=40)
    assert result.returncode != 0
    assert "ActionError: 0B2 failed on rank 0" in result.stdout
    assert "OSError: disk on fire (in step 2)" in result.stdout
    result = on_ranks(3, leave_early, timeout=40)
    assert result.returncode != 0
    assert "rank 1 ended its script" in result.stdout
