import chainer
import chainer.links as L
import pytest

from divisible import Divisible
from model_compression.selection import (
    check_rows,
    check_users,
    select,
    together,
    weighted_layers,
    weights_of,
)


class Block(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(2, 3, 3)
            self.normalized = L.BatchNormalization(3)
            self.second = L.Convolution2D(3, 2, 3)


class Narrow(L.Linear):
    pass


def layers():
    return weighted_layers(
        Divisible(L.Linear(4, 3), Narrow(3, 2), Block(), L.EmbedID(5, 2))
    )


@pytest.mark.parametrize(
    "entries, expected",
    [
        (["Linear"], ["/0", "/1"]),
        (["Narrow"], ["/1"]),
        (["/0"], ["/0"]),
        (["/2"], ["/2/first", "/2/second"]),
        (["/2/*"], ["/2/first", "/2/second"]),
        (["/*/first", "EmbedID"], ["/2/first", "/3"]),
        (["*"], ["/0", "/1", "/2/first", "/2/second", "/3"]),
    ],
)
def test_layers_by_class_path_and_pattern(entries, expected):
    assert sorted(select(entries, layers(), "rule")) == expected


@pytest.mark.parametrize(
    "entry, words",
    [
        ("/9", "the layer '/9' means no layer with weights; those of this model are"),
        ("Dense", "the layer 'Dense' means no"),
        ("/9*", "the pattern '/9\\*' means no"),
        ("BatchNormalization", "means no layer with weights"),
    ],
)
def test_what_means_no_layer_is_refused(entry, words):
    with pytest.raises(ValueError, match=words) as caught:
        select([entry], layers(), "Prune('l1')")
    assert str(caught.value).startswith("Prune('l1'): ")


def test_a_layer_without_sizes_is_refused_only_where_it_is_meant():
    model = chainer.Sequential(L.Linear(None, 3), L.Linear(3, 2))
    found = weighted_layers(model)
    assert select(["/1"], found, "rule") == ["/1"]
    with pytest.raises(ValueError, match="/0/W has no shape before the first"):
        select(["/0"], found, "rule")


def test_a_weight_of_two_layers_is_named_by_both_or_refused():
    model = Divisible(L.Linear(3, 3), L.Linear(3, 3))
    model.tie("/0/W", "/1/W")
    found = weighted_layers(model)
    check_users(["/0", "/1"], found, "rule")
    assert weights_of(["/0", "/1"], found) == {"/0/W": (3, 3)}
    with pytest.raises(ValueError, match="/0 has the weight /0/W in common with /1"):
        check_users(["/0"], found, "rule")


@pytest.mark.parametrize("transpose", [False, True])
def test_an_error_names_the_layer_of_the_rule_and_the_other_one(transpose):
    model = Divisible(L.Linear(3, 3), L.Linear(3, 3), L.Linear(3, 3))
    model.tie("/0/W", "/2/W", transpose=transpose)
    for mine, other in (("/0", "/2"), ("/2", "/0")):
        words = f"{mine} has the weight /0/W in common with {other}, which the rule"
        with pytest.raises(ValueError, match=words):
            check_users([mine, "/1"], weighted_layers(model), "rule")


def test_stages_know_their_layers_by_the_models_paths():
    model = Divisible(*[L.Linear(3, 3) for _ in range(3)])
    whole = weighted_layers(model)
    parts = [weighted_layers(model.divide(*cut)) for cut in [(0, 1), (1, 3)]]
    assert together(parts) == whole


def test_links_of_no_class_of_their_own_are_layers():
    found = weighted_layers(chainer.Sequential(L.NStepLSTM(1, 3, 2, 0.0)))
    assert found["/0/0"].kinds == ("Link",)
    assert select(["Link"], found, "rule") == ["/0/0"]


@pytest.mark.parametrize("kind", ["Deconvolution2D", "DepthwiseConvolution2D"])
def test_rows_that_are_no_outputs_are_refused(kind):
    found = weighted_layers(Divisible(L.Linear(2, 3), getattr(L, kind)(2, 3, 3)))
    for granularity in ("element", (2, 2), "channel"):
        check_rows(["/0", "/1"], found, granularity, "rule")
    check_rows(["/0"], found, "row", "rule")
    with pytest.raises(ValueError, match=f"rule: /1 is {kind}, whose weights have no"):
        check_rows(["/0", "/1"], found, "row", "rule")
