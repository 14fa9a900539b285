"""Models become smaller while a trainer of Chainer trains them."""

import contextlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, extensions

import chainer_kernels
from mixed_precision import MixedPrecision
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    load_applied,
)


def make_model():
    np.random.seed(3)
    return L.Classifier(chainer.Sequential(L.Linear(6, 12), F.relu, L.Linear(12, 3)))


def make_trainer(plan, out, end, **options):
    """Returns a trainer of 5 minibatches an epoch, and its extension."""
    model = make_model()
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    t = (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 1)
    data = chainer.datasets.TupleDataset(x, t.astype(np.int32))
    iterator = chainer.iterators.SerialIterator(data, 8, shuffle=False)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    trainer = Trainer(updater, end, out=out)
    compress = Compress(plan, optimizer, **options)
    trainer.extend(compress)
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    return trainer, compress, model


def zeros(model):
    return [float((link.W.array == 0).mean()) for link in model.predictor[::2]]


PLAN = CompressionPlan(
    [
        Prune("magnitude", layers="/predictor/0", to=0.75, end=(4, "epoch"), steps=5),
        Prune("taylor", layers="/predictor/1", to=0.5, begin=(2, "epoch")),
        Quantize(
            "int8",
            layers="/predictor/0",
            targets=["weight", "input"],
            begin=(2, "epoch"),
        ),
        Quantize("codebook4", layers="/predictor/1", begin=(1, "epoch")),
    ]
)


def test_pruned_and_quantized_layers_notice_that_they_change(tmp_path):
    found = []
    for scope in (contextlib.nullcontext, chainer_kernels.unchanged_weights):
        trainer, _, model = make_trainer(PLAN, tmp_path / scope.__name__, (6, "epoch"))
        with scope():
            trainer.run()
        found.append([param.array for param in model.params()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_degrees_grow_along_the_curve_and_training_goes_on(tmp_path):
    trainer, compress, model = make_trainer(PLAN, tmp_path, (6, "epoch"))
    seen = []
    trainer.extend(
        lambda trainer: seen.append((zeros(model), compress.sparsity)),
        trigger=(1, "iteration"),
        name="seen",
    )
    trainer.run()
    first = [round(each[0] * 72) for each, _ in seen]
    shares = [1 - (1 - k / 5) ** 3 for k in range(1, 6)]
    assert first == [
        int(0.75 * shares[min(4, i // 5)] * 72 + 0.5) for i in range(1, 31)
    ]
    assert [each[1] for each, _ in seen] == [0] * 9 + [0.5] * 21
    assert compress.degrees == [0.75, 0.5, 1, 1]
    log = trainer.get_extension("LogReport").log
    assert log[-1]["compress/sparsity"] == (54 + 18) / (72 + 36)
    assert seen[-1][1] == (54 + 18) / (72 + 36)
    bits = [each.get("compress/bits") for each in (log[3], log[4], log[-1])]
    # 72 weights in 8 bits from the second epoch on, 36 in 4 from the first.
    assert bits == [32, (72 * 32 + 36 * 4) / 108, (72 * 8 + 36 * 4) / 108]
    assert log[-1]["main/loss"] < log[0]["main/loss"]
    assert "5 of 5   75.0%" in str(compress)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    def trainer_until(end, **options):
        return make_trainer(PLAN, tmp_path, end, metric=None, **options)

    straight, _, expected = trainer_until((30, "iteration"))
    straight.run()
    halfway, _, _ = trainer_until((13, "iteration"))
    halfway.run()
    chainer.serializers.save_npz(tmp_path / "halfway.npz", halfway)
    resumed, compress, model = trainer_until((30, "iteration"))
    chainer.serializers.load_npz(tmp_path / "halfway.npz", resumed)
    assert compress.degrees[0] > 0
    resumed.run()
    for (path, one), (_, other) in zip(model.namedparams(), expected.namedparams()):
        np.testing.assert_array_equal(one.array, other.array, err_msg=path)
        for name, value in one.update_rule.state.items():
            np.testing.assert_array_equal(value, other.update_rule.state[name])


class Reports(chainer.training.Extension):
    """Reports metrics that are known beforehand, one at each epoch."""

    trigger = 1, "epoch"
    priority = chainer.training.PRIORITY_WRITER

    def __init__(self, values):
        self._values = values

    def __call__(self, trainer):
        chainer.report({"quality": self._values[trainer.updater.epoch - 1]})


def test_a_step_that_costs_too_much_is_taken_back(tmp_path):
    plan = CompressionPlan(
        [Prune("l1", layers="/predictor/0", to=0.8, end=(6, "iteration"), steps=4)]
    )
    trainer, compress, model = make_trainer(
        plan, tmp_path, (6, "epoch"), metric="quality", tolerance=0.05
    )
    # Known after 1 epoch; then a step and a value each, of which the third is too low.
    trainer.extend(Reports([0.9, 0.88, 0.86, 0.8, 0.9, 0.9]))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    sparsity = [round(each["compress/sparsity"] * 72) for each in log]
    steps = [int(0.8 * (1 - (1 - k / 4) ** 3) * 72 + 0.5) for k in range(5)]
    # A value that is reported after an update counts at the next one.
    expected = [steps[0]] * 5 + [steps[1]] * 5 + [steps[2]] * 5 + [steps[3]] * 5
    expected += [steps[2]] * 10
    assert sparsity == expected
    assert compress.degrees == [pytest.approx(0.8 * 0.875)]
    # The weights that came back have trained on.
    assert (model.predictor[0].W.array == 0).sum() == steps[2]


def test_a_lower_metric_may_be_the_better_one(tmp_path):
    plan = CompressionPlan([Prune("l1", layers="/predictor/0", to=0.5)])
    for values, expected in (([2.0, 1.9], 0.5), ([2.0, 2.2], 0.0)):
        trainer, compress, _ = make_trainer(
            plan, tmp_path, (3, "epoch"), metric="quality", better="lower"
        )
        trainer.extend(Reports([*values, 0.0]))
        trainer.run()
        assert compress.degrees == [expected]


def test_a_metric_that_nobody_reports_is_said(tmp_path):
    plan = CompressionPlan([Prune("l1", layers="/predictor/0", to=0.5)])
    trainer, compress, _ = make_trainer(
        plan, tmp_path, (2, "epoch"), metric="validation/main/accuracy"
    )
    with pytest.warns(UserWarning, match="'validation/main/accuracy' was never"):
        trainer.run()
    assert compress.degrees == [0]


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"metric": 3}, TypeError, "metric must be a name"),
        ({"tolerance": 0.1}, ValueError, "tolerance needs a metric"),
        ({"metric": "a", "tolerance": -1}, ValueError, "tolerance must be 0 or more"),
        ({"metric": "a", "better": "more"}, ValueError, "'higher' or 'lower'"),
    ],
)
def test_wrong_arguments_are_refused(options, error, words):
    optimizer = chainer.optimizers.SGD().setup(make_model())
    plan = CompressionPlan([Prune("l1", layers="Linear", to=0.5)])
    with pytest.raises(error, match=words):
        Compress(plan, optimizer, **options)


def test_rules_are_checked_before_training():
    optimizer = chainer.optimizers.SGD().setup(make_model())
    with pytest.raises(ValueError, match="the layer 'Convolution2D' means no layer"):
        Compress(CompressionPlan([Prune("l1", layers="Convolution2D")]), optimizer)
    with pytest.raises(TypeError, match="must be a CompressionPlan, not Prune"):
        Compress(Prune("l1"), optimizer)
    for wrong in (None, [], make_model(), {"main": make_model()}):
        with pytest.raises(TypeError, match="optimizer must be a Chainer optimizer"):
            Compress(PLAN, wrong)
    with pytest.raises(ValueError, match="has no model"):
        Compress(PLAN, chainer.optimizers.SGD())
    with pytest.raises(ValueError, match="call setup"):
        Compress(PLAN, chainer.optimizers.SGD())


def test_a_metric_that_has_fallen_is_no_new_measure(tmp_path):
    plan = CompressionPlan(
        [
            Prune("l1", layers="/predictor/0", to=0.5),
            Prune("l1", layers="/predictor/1", to=0.5, begin=(3, "epoch")),
        ]
    )
    trainer, compress, _ = make_trainer(
        plan, tmp_path, (6, "epoch"), metric="quality", tolerance=0.05
    )
    # The first step is taken back; the second one is compared with 0.9 as well.
    trainer.extend(Reports([0.9, 0.7, 0.8, 0.8, 0.8, 0.8]))
    trainer.run()
    assert compress.degrees == [0, 0]


def test_a_plan_that_is_refused_leaves_the_optimizer_for_another():
    model = make_model()
    optimizer = chainer.optimizers.SGD().setup(model)
    for layer in ("/9", "/predictor/0"):
        # Of the second the channels would be followed by a layer that is not there.
        rules = [
            Quantize("codebook4", layers="Linear"),
            Prune("l1", layers="/predictor/1", to=0.5, granularity="channel"),
            Quantize("int8", layers=layer, targets="input"),
        ]
        with pytest.raises(ValueError, match="means no layer|outputs of the model"):
            Compress(CompressionPlan(rules), optimizer)
    assert Compress(PLAN, optimizer).degrees == [0] * 4


def test_an_optimizer_follows_one_plan():
    optimizer = chainer.optimizers.SGD().setup(make_model())
    Compress(PLAN, optimizer)
    for rule in (Prune("l1"), Quantize("codebook4")):
        with pytest.raises(ValueError, match="follows another compression plan"):
            Compress(CompressionPlan([rule]), optimizer)


@pytest.mark.parametrize("rule", [Prune("l1"), Quantize("codebook4")])
def test_an_optimizer_that_was_set_up_anew_is_refused(rule):
    model = make_model()
    optimizer = chainer.optimizers.SGD().setup(model)
    compress = Compress(CompressionPlan([rule]), optimizer)
    compress.advance(1, 0.2)
    optimizer.setup(model)
    with pytest.raises(RuntimeError, match="after optimizer.setup"):
        compress.advance(2, 0.4)


def test_another_plan_has_its_own_bits():
    model = make_model()
    first, again = (
        Quantize("int8", layers="*", targets="weight"),
        Quantize("int2", layers="*", targets="weight"),
    )
    for rule in (first, again):
        optimizer = chainer.optimizers.SGD().setup(model)
        Compress(CompressionPlan([rule]), optimizer).advance(1, 0.2)
    eye = np.eye(6, dtype=np.float32)
    y = model.predictor[0](eye).array - model.predictor[0].b.array
    assert all(len(np.unique(column)) <= 3 for column in y.T)


def test_bits_that_were_taken_back_are_not_applied(tmp_path):
    plan = CompressionPlan(
        [
            Quantize(
                "int2", layers="*", targets=["weight", "input"], begin=(2, "epoch")
            ),
            Quantize("int8", layers="/predictor/1", targets="bias"),
        ]
    )
    trainer, compress, model = make_trainer(
        plan, tmp_path, (4, "epoch"), metric="quality"
    )
    # The bias costs nothing; the rest does.
    trainer.extend(Reports([0.9, 0.9, 0.5, 0.9]))
    trainer.run()
    assert compress.degrees == [0, 1]
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    loaded = plan.prepare(make_model())
    chainer.serializers.load_npz(tmp_path / "model.npz", loaded)
    x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    for each in (model, loaded):
        small = apply(each, plan)
        np.testing.assert_array_equal(
            small.predictor(x).array, model.predictor(x).array
        )
        assert small.predictor[2].b_whole.dtype == np.int8
        chainer.serializers.save_npz(tmp_path / "small.npz", small)
        again = load_applied(tmp_path / "small.npz", make_model(), plan)
        np.testing.assert_array_equal(
            again.predictor(x).array, small.predictor(x).array
        )


def test_effects_that_are_not_known_are_waited_for():
    model = make_model()
    sgd = chainer.optimizers.SGD(0.1)
    optimizer = MixedPrecision(sgd, loss_scale=1.0).setup(model)
    rules = [
        Prune("taylor", layers="/predictor/0", to=0.5),
        Prune("l1", layers="/predictor/1", to=0.5),
    ]
    plan = CompressionPlan(rules)
    compress = Compress(plan, optimizer)
    for iteration, factor in ((1, np.nan), (2, 1)):
        for param in model.params():
            param.grad = np.full(param.shape, factor, np.float32)
        # The first update is skipped.
        optimizer.update()
        compress.advance(iteration, iteration / 10)
        assert compress.degrees == [0.5 * (iteration == 2), 0.5]
    weight = model.predictor[0].W.array
    assert (weight == 0).mean() == 0.5


@pytest.mark.parametrize(
    "rules", [[Prune("l1", to=0.6)], [Prune("l1", to=0.5), Quantize("int8")]]
)
def test_a_snapshot_of_another_plan_is_refused(rules, tmp_path):
    def compress(rules):
        optimizer = chainer.optimizers.SGD().setup(make_model())
        return Compress(CompressionPlan(rules), optimizer)

    saved = compress([Prune("l1", to=0.5)])
    saved.advance(1, 0.2)
    chainer.serializers.save_npz(tmp_path / "compress.npz", saved)
    with pytest.raises(ValueError, match="under another compression plan than"):
        chainer.serializers.load_npz(tmp_path / "compress.npz", compress(rules))


def test_weights_that_are_not_finite_have_no_codebook():
    model = make_model()
    compress = Compress(
        CompressionPlan([Quantize("codebook4", layers="Linear")]),
        chainer.optimizers.SGD().setup(model),
    )
    model.predictor[0].W.array[0, 0] = np.nan
    with pytest.raises(ValueError, match="/predictor/0/W has values that are not fin"):
        compress.advance(1, 0.2)
