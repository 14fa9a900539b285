"""What a pipeline on one rank does that the undivided model does: no MPI messages."""

import functools
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, extensions
from mpi4py import MPI

from divisible import Divisible
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater, predict
from pipeline.start import arguments

X = np.random.RandomState(0).normal(size=(8, 4)).astype(np.float32)
T = np.arange(8, dtype=np.int32) % 3


def test_a_loss_whose_parameters_no_stage_has():
    """The gradients of the first step, as Chainer computes them after cleargrads."""
    head, expected = L.Linear(5, 3), L.Linear(5, 3)
    expected.copyparams(head)
    stage = Divisible(L.Linear(4, 5))
    pipe = Pipeline(
        stage,
        MPI.COMM_SELF,
        n_microbatches=2,
        lossfun=lambda y, t: F.softmax_cross_entropy(head(y), t),
        accfun=None,
        loss_scale=8,
    )
    serial = stage.copy("copy")
    expected.cleargrads()
    F.softmax_cross_entropy(expected(serial(X)), T).backward()
    for _ in range(2):
        pipe.step(X, T)
        np.testing.assert_allclose(
            head.W.grad, 8 * expected.W.grad, rtol=1e-5, atol=1e-6
        )
    # The scale goes with the gradients: the optimizer divides by it.
    optimizer = chainer.optimizers.SGD(1.0).setup(head)
    before = head.W.array.copy()
    optimizer.update()
    np.testing.assert_allclose(
        before - head.W.array, expected.W.grad, rtol=1e-4, atol=1e-6
    )


def test_the_number_of_classes_may_vary():
    model = Divisible(lambda x: x * 2)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
    for n_classes in (3, 5, 2):
        x = np.ones((4, n_classes), np.float32)
        t = np.full(4, n_classes - 1, np.int32)
        expected = float(F.softmax_cross_entropy(x * 2, t).array)
        assert pipe.step(x, t)["loss"] == pytest.approx(expected)
    with pytest.raises(RuntimeError, match="label 2, but the model has 2 outputs"):
        pipe.step(np.ones((4, 2), np.float32), np.full(4, 2, np.int32))


def test_an_accuracy_that_ignores_a_label_is_that_of_the_minibatch():
    model = Divisible(L.Linear(4, 3))
    t = np.array([-1, -1, -1, 0, 1, 2, 0, -1], np.int32)
    accfun = functools.partial(F.accuracy, ignore_label=-1)
    expected = float(accfun(model(X), t).array)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2, accfun=accfun)
    assert pipe.step(X, t)["accuracy"] == pytest.approx(expected)
    assert pipe.n_counted == {"loss": 4, "accuracy": 4}
    iterator = chainer.iterators.SerialIterator(
        list(zip(X, t)), 3, repeat=False, shuffle=False
    )
    result = PipelineEvaluator(iterator, pipe, at_once=1)()
    assert result["main/accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "x, t, message",
    [
        ((), T, "x is an empty tuple on rank 0"),
        (X, (), "t is an empty tuple on rank 0"),
        (X, T[:4], "x has 8 samples, but t has 4"),
        (list(X), T, "an input of its own, not a sample"),
        (X, T - 2, "t has the label -2: labels start at 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(x, t, message):
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(ValueError, match=message):
        pipe.step(x, t)


def test_a_closed_pipeline_says_so():
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
    pipe.close()
    pipe.close()
    for call in (pipe.step, pipe.evaluate):
        with pytest.raises(RuntimeError, match="this Pipeline is closed"):
            call(X, T)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool"])
def test_labels_of_another_type_are_refused(dtype):
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(TypeError, match=f"t is of dtype {dtype}, but class labels"):
        pipe.step(X, T.astype(dtype))


def test_targets_may_be_probabilities():
    model = Divisible(L.Linear(4, 3))
    t = np.random.RandomState(0).dirichlet([1, 1, 1], 8).astype(np.float32)
    expected = float(F.softmax_cross_entropy(model(X), t).array)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2, accfun=None)
    assert pipe.step(X, t)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lossfun": None}, "lossfun must be a function or a link, not None"),
        ({"accfun": "accuracy"}, "accfun must be a function or a link, not 'accuracy'"),
    ],
)
def test_losses_that_cannot_be_called_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2, **options)


@pytest.mark.parametrize(
    "last, options, message",
    [
        (lambda y: {"y": y}, {}, "the last layer of the model returned a dictionary"),
        (F.identity, {"accfun": lambda y, t: None}, "accfun must return a scalar"),
        (F.identity, {"accfun": lambda y, t: y}, "accfun must return a scalar"),
    ],
)
def test_what_does_not_fit_the_loss_is_said(last, options, message):
    pipe = Pipeline(
        Divisible(L.Linear(4, 3), last), MPI.COMM_SELF, n_microbatches=2, **options
    )
    with pytest.raises(RuntimeError, match=message):
        pipe.step(X, T)


def test_prediction_needs_samples():
    pipe = Pipeline(Divisible(L.Linear(4, 3), F.sum), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(TypeError, match="returned a scalar for a microbatch"):
        pipe.predict(X)


@pytest.mark.parametrize(
    "kind", [chainer.iterators.SerialIterator, chainer.iterators.MultithreadIterator]
)
def test_predictions_and_evaluations_need_an_end(kind):
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(ValueError, match=f"{kind.__name__} to predict from repeats"):
        predict(pipe, kind(list(X), 4))
    with pytest.raises(ValueError, match=f"{kind.__name__} to evaluate repeats"):
        PipelineEvaluator(kind(list(zip(X, T)), 4), pipe)


def test_training_needs_samples():
    stage = Divisible(L.Linear(4, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    optimizer = chainer.optimizers.SGD().setup(stage)
    iterator = chainer.iterators.SerialIterator([], 4)
    with pytest.raises(ValueError, match="the SerialIterator is empty"):
        PipelineUpdater(iterator, optimizer, pipe)


def test_a_subclass_of_the_updater_may_do_more():
    class Twice(PipelineUpdater):
        def update_core(self):
            super().update_core()
            super().update_core()

    stage = Divisible(L.Linear(4, 3))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    updater = Twice(samples(), optimizer, pipe)
    updater.update()
    assert (updater.iteration, optimizer.t, pipe.n_steps) == (1, 2, 2)


def test_an_updater_without_targets_is_refused():
    stage = Divisible(L.Linear(4, 3))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(ValueError, match=r"label_key is \(\) on rank 0"):
        PipelineUpdater(samples(), optimizer, pipe, label_key=())


class Steps(chainer.Chain):
    """Takes whole sequences, each from the beginning."""

    def __init__(self):
        super().__init__(lstm=L.LSTM(4, 3))

    def forward(self, x):
        self.lstm.reset_state()
        for now in F.separate(x, axis=1):
            y = self.lstm(now)
        return y


class StatefulSteps(Steps):
    def reset_state(self):
        self.lstm.reset_state()


@pytest.mark.parametrize(
    "layer", [L.LSTM(4, 3), StatefulSteps(), chainer.Sequential(F.relu, L.LSTM(4, 3))]
)
def test_layers_that_keep_a_state_between_calls_are_refused(layer):
    with pytest.raises(TypeError, match="layer 1, .* has a method reset_state"):
        Pipeline(Divisible(F.relu, layer).divide(), MPI.COMM_SELF, n_microbatches=2)


def test_sequences_in_microbatches():
    x = np.random.RandomState(0).rand(6, 5, 4).astype(np.float32)
    t = np.array([0, 1, 2, 0, 1, 2], np.int32)
    model = Divisible(Steps())
    loss = float(F.softmax_cross_entropy(model(x), t).array)
    for recompute in ("never", "always"):
        pipe = Pipeline(
            model.divide(), MPI.COMM_SELF, n_microbatches=3, recompute=recompute
        )
        assert pipe.step(x, t)["loss"] == pytest.approx(loss, rel=1e-5)


def test_chainermns_transport_is_for_host_memory():
    gpu = types.SimpleNamespace(xp="cupy")
    arguments.check_transport("mpi", gpu)
    with pytest.raises(ValueError, match="host memory only: use 'mpi'"):
        arguments.check_transport("chainermn", gpu)


def test_close_is_safe_after_an_error_and_after_itself():
    stage = Divisible(L.Linear(4, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(TypeError):
        pipe.step(X, None)
    pipe.close()
    # Messages may be under way, which hold on to it.
    assert pipe.internals.ranks.comm != MPI.COMM_NULL
    with Pipeline(stage, MPI.COMM_SELF, n_microbatches=2) as pipe:
        pipe.close()
    assert pipe.internals.ranks.comm == MPI.COMM_NULL


@pytest.mark.parametrize(
    "layer",
    [
        lambda: L.Linear(None, 3, nobias=True),
        lambda: L.Linear(None, 3, initialW=_fill),
        lambda: L.Linear(None, 3),
    ],
)
def test_inputs_of_layers_that_are_sized_later(layer):
    pipe = Pipeline(Divisible(layer()), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(TypeError, match="x is float64 and the parameters are float32"):
        pipe.step(X.astype(np.float64), T)
    assert np.isfinite(
        Pipeline(Divisible(layer()), MPI.COMM_SELF, n_microbatches=2).step(X, T)["loss"]
    )


def _fill(array):
    array[...] = 0.1


def test_a_layer_may_report_what_is_no_number():
    def layer(x):
        chainer.report({"size": len(x.array), "each": np.zeros(3), "none": None})
        return x

    result = Pipeline(
        Divisible(L.Linear(4, 3), layer), MPI.COMM_SELF, n_microbatches=2
    ).step(X, T)
    assert set(result) == {"loss", "accuracy", "size"}
    assert result["size"] == 4


# -- one optimizer for several stages ------------------------------------------------


def two_stages():
    with chainer.using_config("dtype", np.float32):
        model = Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 3))
    return [model.divide(0, 2), model.divide(2, 3)]


def samples():
    iterator = chainer.iterators.SerialIterator(list(zip(X, T)), 8)
    return iterator


def test_mixed_precision_of_several_stages_with_the_updater():
    stages = [to_float16(stage) for stage in two_stages()]
    optimizer = MixedPrecision(chainer.optimizers.SGD(0.1)).setup(stages)
    pipe = Pipeline(
        stages,
        MPI.COMM_SELF,
        n_microbatches=2,
        schedule="interleaved",
        loss_scale=optimizer.loss_scale,
    )
    updater = PipelineUpdater(samples(), optimizer, pipe)
    before = [param.array.copy() for stage in stages for param in stage.params()]
    updater.update()
    after = [param.array for stage in stages for param in stage.params()]
    assert all((a != b).any() for a, b in zip(before, after))


def test_two_mixed_precisions_on_a_rank_are_refused():
    stages, scale = two_stages(), DynamicLossScale()
    optimizers = [
        MixedPrecision(chainer.optimizers.SGD(0.1), loss_scale=scale).setup(stage)
        for stage in stages
    ]
    pipe = Pipeline(
        stages,
        MPI.COMM_SELF,
        n_microbatches=2,
        schedule="interleaved",
        loss_scale=scale,
    )
    with pytest.raises(ValueError, match="main, main_1 .* make one for all stages"):
        PipelineUpdater(samples(), optimizers, pipe)


def trained(optimizer=None):
    """Returns an updater of a model in one process, and samples."""
    stage = Divisible(L.Linear(4, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    iterator = chainer.iterators.SerialIterator([*zip(X, T)], 4)
    optimizer = optimizer or chainer.optimizers.SGD(0.1).setup(stage)
    return PipelineUpdater(iterator, optimizer, pipe)


def test_chainers_evaluator_of_a_stage_is_refused(tmp_path):
    updater = trained()
    stage = updater.pipeline.stages[0]
    iterator = chainer.iterators.SerialIterator([*zip(X, T)], 4, False, False)
    trainer = Trainer(updater, (1, "iteration"), out=tmp_path)
    trainer.extend(extensions.Evaluator(iterator, stage))
    with pytest.raises(ValueError, match="'validation' .* use PipelineEvaluator"):
        trainer.run()
    trainer = Trainer(updater, (1, "iteration"), out=tmp_path)
    trainer.extend(extensions.Evaluator(iterator, updater.pipeline))
    with pytest.raises(ValueError, match="of a pipeline, .* use PipelineEvaluator"):
        trainer.run()
    # A classifier around the model has a loss.
    trainer = Trainer(updater, (1, "iteration"), out=tmp_path)
    evaluator = extensions.Evaluator(iterator, L.Classifier(stage))
    trainer.extend(evaluator, trigger=(1, "iteration"))
    trainer.run()
    expected = F.softmax_cross_entropy(stage(X), T).array
    found = trainer.observation["validation/main/loss"]
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    "optimizer, error, words",
    [
        (chainer.optimizers.SGD(), ValueError, r"call optimizer.setup\(stage\)"),
        ([0.1], TypeError, "must be a chainer.Optimizer, not float"),
    ],
)
def test_optimizers_that_are_none(optimizer, error, words):
    with pytest.raises(error, match=words):
        trained(optimizer)


def test_arguments_of_an_updater_in_another_order():
    updater = trained()
    optimizer = updater.get_optimizer("main")
    with pytest.raises(TypeError, match="pipeline must be a Pipeline, not SGD"):
        PipelineUpdater(None, updater.pipeline, optimizer)
