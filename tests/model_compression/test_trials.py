import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible
from model_compression import Prune, Quantize, Sensitivity, sensitivity
from model_compression.sensitivity_table import SensitivityTrial
from tests.support.faulty_files import Fault, faulty

X = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)


def make_model():
    np.random.seed(0)
    return Divisible(L.Linear(6, 8), F.tanh, L.Linear(8, 3))


def closeness(to):
    expected = to(X).array.copy()
    return lambda model: -float(abs(model(X).array - expected).mean())


def test_each_trial_changes_one_layer_and_sets_it_back():
    model = make_model()
    before = {path: param.array.copy() for path, param in model.namedparams()}
    inner, seen = closeness(model), []

    def evaluate(model):
        changed = {
            path: param.array.copy()
            for path, param in model.namedparams()
            if not np.array_equal(param.array, before[path])
        }
        seen.append(changed)
        return inner(model)

    found = sensitivity(
        model, evaluate, methods=["l1", "int3", "codebook2"], degrees=[0.25, 0.75]
    )
    assert seen[0] == {}
    assert [[*each] for each in seen[1:]] == [["/0/W"]] * 4 + [["/2/W"]] * 4
    for path, param in model.namedparams():
        np.testing.assert_array_equal(param.array, before[path])
    assert (seen[2]["/0/W"] == 0).sum() == 36
    assert len(np.unique(seen[4]["/0/W"])) <= 4
    assert found.base == 0
    columns = [each.column for each in found.trials[:4]]
    assert columns == ["l1 25%", "l1 75%", "int3", "codebook2"]
    sizes = [each.bytes for each in found.trials[:4]]
    assert sizes == [36 * 4, 12 * 4, 48 * 3 / 8, 48 * 2 / 8]
    assert found.trials[0].metric > found.trials[1].metric
    head, names, first, second = str(found).splitlines()
    assert head == "metric -0 as it is, higher is better"
    assert " ".join(names.split()) == "layer bytes l1 25% l1 75% int3 codebook2"
    assert first.split()[:2] == ["/0", "192"] and second.split()[:2] == ["/2", "96"]


def test_an_interrupted_run_goes_on(tmp_path):
    path, model = tmp_path / "table.json", make_model()
    inner, calls = closeness(model), []

    def evaluate(model):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return inner(model)

    with pytest.raises(KeyboardInterrupt):
        sensitivity(model, evaluate, methods="l2", path=path)
    found = sensitivity(model, evaluate, methods="l2", path=path)
    assert len(calls) == 1 + 8 + 1
    expected = sensitivity(make_model(), inner, methods="l2")
    assert [t[:5] for t in found.trials] == [t[:5] for t in expected.trials]
    again = Sensitivity.load(path)
    assert str(again) == str(found)
    model[0].W.array += 1
    with pytest.raises(ValueError, match="trials of another model"):
        sensitivity(model, evaluate, methods="l2", path=path)


def test_metrics_that_are_not_finite_are_saved_and_read(tmp_path):
    path, model, calls = tmp_path / "table.json", make_model(), []
    metrics = [float("nan"), 0.5, float("inf"), 1e30, 0.25]

    def evaluate(model):
        calls.append(1)
        return metrics[len(calls) - 1]

    found = sensitivity(model, evaluate, methods="l2", degrees=[0.5, 0.9], path=path)
    assert [t.metric for t in found.trials] == metrics[1:]
    again = sensitivity(model, evaluate, methods="l2", degrees=[0.5, 0.9], path=path)
    assert len(calls) == 5 and np.isnan(again.base)
    assert [t.metric for t in again.trials if t.metric < 1] == [0.5, 0.25]
    assert np.isnan([t.metric for t in again.trials]).sum() == 2
    again.save(path)
    assert str(Sensitivity.load(path)) == str(again)


def test_a_full_disk_ends_no_measurement(tmp_path):
    model = make_model()
    expected = sensitivity(model, closeness(model), methods="l2", degrees=[0.5])
    full = faulty(tmp_path, Fault("ENOSPC", 0, True))
    with full, pytest.warns(UserWarning, match="The trials so far cannot") as caught:
        found = sensitivity(
            model, closeness(model), methods="l2", degrees=[0.5], path=tmp_path / "t"
        )
    assert len(caught) == 1
    assert [t[:5] for t in found.trials] == [t[:5] for t in expected.trials]


def test_other_trials_are_no_continuation(tmp_path):
    path, model = tmp_path / "table.json", make_model()
    sensitivity(model, closeness(model), methods="l2", degrees=[0.5], path=path)
    with pytest.raises(ValueError, match="granularity 'element' where higher is"):
        sensitivity(
            model,
            closeness(model),
            methods="l2",
            degrees=[0.5],
            path=path,
            granularity=(2, 2),
        )


def best(trials, sizes, budget):
    """The most bytes within the budget, by trying everything."""
    found = {0.0: 0.0}
    for layer in sizes:
        choices = [(0.0, 0.0)] + [
            (max(0.0, 1 - t.metric), sizes[layer] - t.bytes)
            for t in trials
            if t.layer == layer
        ]
        after = {}
        for cost, gain in found.items():
            for more, bytes_ in choices:
                total = round(cost + more, 9)
                if total <= budget:
                    after[total] = max(after.get(total, 0), gain + bytes_)
        found = after
    return max(found.values())


@given(
    st.lists(
        st.lists(st.integers(-2, 20), min_size=2, max_size=3), min_size=1, max_size=4
    ),
    st.integers(0, 30),
)
def test_the_plan_saves_most_within_the_budget(costs, budget):
    sizes = {f"/{i}": 100 * (i + 1) for i in range(len(costs))}
    trials = []
    for i, own in enumerate(costs):
        for k, cost in enumerate(own, 1):
            size = sizes[f"/{i}"] * (1 - k / 4)
            trials.append(
                SensitivityTrial(f"/{i}", "l1", k / 4, 1 - cost / 100, size, 0.0)
            )
    table = Sensitivity(1.0, trials, sizes, "higher", "element")
    expected = best(trials, sizes, budget / 100)
    if expected == 0:
        with pytest.raises(ValueError, match="no layer can be changed within"):
            table.choose(budget / 100)
        return
    plan = table.choose(budget / 100, begin=(1, "epoch"))
    layers = [rule.layers[0] for rule in plan.rules]
    assert len({*layers}) == len(layers)
    saved = sum(sizes[r.layers[0]] * r.to for r in plan.rules)
    assert saved == pytest.approx(expected)


def test_a_plan_may_mix_methods_and_has_the_course():
    trials = [
        SensitivityTrial("/0", "l1", 0.5, 0.99, 50, 0.0),
        SensitivityTrial("/0", "int4", 0.0, 0.9, 12.5, 0.0),
        SensitivityTrial("/1", "l1", 0.5, 0.5, 50, 0.0),
        SensitivityTrial("/1", "int4", 0.0, 1.1, 12.5, 0.0),
        SensitivityTrial("/1", "codebook2", 0.0, float("nan"), 6.0, 0.0),
    ]
    table = Sensitivity(1.0, trials, {"/0": 100, "/1": 100}, "higher", (2, 4))
    course = {"begin": (1, "epoch"), "end": (4, "epoch"), "steps": 3}
    assert table.choose(0.02, **course).rules == (
        Prune("l1", layers="/0", to=0.5, granularity=(2, 4), **course),
        Quantize("int4", layers="/1", begin=(4, "epoch")),
    )
    with pytest.raises(ValueError, match="budget must be 0 or more"):
        table.choose(-1)


def test_a_plan_of_so_few_bytes_loses_least():
    trials = [
        SensitivityTrial("/0", "l1", 0.5, 0.99, 50, 0.0),
        SensitivityTrial("/0", "int4", 0.0, 0.9, 12.5, 0.0),
        SensitivityTrial("/1", "l1", 0.5, 0.5, 50, 0.0),
        SensitivityTrial("/1", "int4", 0.0, float("nan"), 12.5, 0.0),
    ]
    table = Sensitivity(1.0, trials, {"/0": 100, "/1": 100}, "higher", "element")
    assert table.least_bytes == 25
    course = {"begin": (1, "epoch"), "end": (4, "epoch")}
    prune = {"to": 0.5, **course}
    assert table.reach(150, **course).rules == (Prune("l1", layers="/0", **prune),)
    assert table.reach(100, **course).rules == (
        Prune("l1", layers="/0", **prune),
        Prune("l1", layers="/1", **prune),
    )
    # Only without a number for the metric.
    assert [rule.method for rule in table.reach(25, **course).rules] == ["int4"] * 2
    with pytest.raises(ValueError, match="leave 25 bytes and .* not 24 bytes"):
        table.reach(24)
    with pytest.raises(ValueError, match="nothing is to be saved by 200 of 200 bytes"):
        table.reach(200)
    with pytest.raises(TypeError, match="curve, not start"):
        table.reach(100, start=(1, "epoch"))


def test_layers_that_cannot_compute_with_few_bits_are_only_pruned():
    np.random.seed(0)
    model = Divisible(L.Bilinear(2, 2, 2), L.Linear(2, 2))
    found = sensitivity(model, lambda model: 1.0, methods=["l1", "int4"], degrees=0.5)
    columns = {(each.layer, each.method) for each in found.trials}
    assert columns == {("/0", "l1"), ("/1", "l1"), ("/1", "int4")}


def test_pictures_are_drawn(tmp_path):

    model = make_model()
    found = sensitivity(
        model, closeness(model), methods=["l1", "l2", "int4"], degrees=[0.2, 0.8]
    )
    assert [axis.get_title() for axis in found.plot().axes] == ["l1", "l2", "bits"]
    found.plot(tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"methods": "taylor"}, "needs gradients"),
        ({"methods": "random"}, "must be one of magnitude"),
        ({"methods": []}, "methods or degrees is empty"),
        ({"degrees": [1.5]}, "to must be between 0 and 1"),
        ({"granularity": "channel"}, "reaches into other layers"),
        ({"layers": "/9"}, "means no layer"),
        ({"layers": 3}, "layers must be"),
        ({"better": "best"}, "'higher' or 'lower'"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    model = make_model()
    with pytest.raises(ValueError, match=words):
        sensitivity(model, closeness(model), **options)


@pytest.mark.parametrize(
    "evaluate, words",
    [(3, "evaluate must be a function"), (lambda model: {}, "as a number, not {}")],
)
def test_an_evaluation_of_no_number_is_refused(evaluate, words):
    with pytest.raises(TypeError, match=words):
        sensitivity(make_model(), evaluate)


def test_a_metric_may_be_a_variable_and_a_degree_one_number():
    found = sensitivity(
        make_model(),
        lambda model: F.sum(model(X)),
        methods="l1",
        degrees=np.float32(0.5),
    )
    assert isinstance(found.base, float) and found.trials[0].degree == 0.5
    with pytest.raises(ValueError, match="budget must be 0 or more, not '1'"):
        found.choose("1")


def test_a_stage_is_refused():
    stage = make_model().divide(0, 1)
    with pytest.raises(ValueError, match="the model is a stage"):
        sensitivity(stage, lambda model: 0.0)


def test_an_evaluation_that_fails_leaves_the_model(tmp_path):
    model = make_model()
    before = model[0].W.array.copy()

    def evaluate(model):
        if not np.array_equal(model[0].W.array, before):
            raise RuntimeError("no data")
        return 1.0

    with pytest.raises(RuntimeError, match="no data"):
        sensitivity(model, evaluate)
    np.testing.assert_array_equal(model[0].W.array, before)
    assert isinstance(model[0].W, chainer.Parameter)


def test_rows_of_a_deconvolution_are_refused():
    model = Divisible(L.Deconvolution2D(2, 3, 3))
    with pytest.raises(ValueError, match="sensitivity: /0 is Deconvolution2D, whose"):
        sensitivity(model, lambda model: 0.0, methods="l1", granularity="row")


@pytest.mark.parametrize(
    "course, error, words",
    [
        ({"start": (1, "epoch")}, TypeError, "curve, not start"),
        ({"begin": (9, "epoch"), "end": (8, "epoch")}, ValueError, "ends at epoch 8"),
        ({"begin": 3}, ValueError, r"choose\(0.1\): begin must be a number and"),
    ],
)
def test_a_wrong_course_is_refused_whatever_is_chosen(course, error, words):
    table = sensitivity(make_model(), lambda model: 0.0, methods="int8")
    assert len(table.choose(0.1, curve="linear").rules) == 2
    with pytest.raises(error, match=words):
        table.choose(0.1, **course)
