import json

import numpy as np
import pytest

from model_compression import Prune, Quantize


@pytest.mark.parametrize("to", [0, 1, -0.1, 1.5, "half", True, None, float("nan")])
def test_a_degree_outside_0_to_1_is_refused(to):
    with pytest.raises(ValueError, match="to must be between 0 and 1") as caught:
        Prune("l2", layers="/3", to=to)
    assert "'/3'" in str(caught.value)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="must be one of magnitude, l1, l2, taylor"):
        Prune("random")


@pytest.mark.parametrize("layers", [[], "", [3], None, ["/0", ""]])
def test_layers_that_are_no_texts_are_refused(layers):
    with pytest.raises(ValueError, match="layers must be a class's name"):
        Prune("l1", layers=layers)


def test_a_rule_begins_at_once_in_the_unit_of_its_end():
    assert Prune("l1", end=(8, "epoch")).progress.begin == (0, "epoch")
    assert Prune("l1").progress.begin == (0, "iteration")


def test_an_end_before_the_beginning_is_refused_with_the_rule():
    with pytest.raises(ValueError, match=r"Prune\('l1', layers='/0'\): it ends at"):
        Prune("l1", layers="/0", begin=(3, "epoch"), end=(2, "epoch"))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"method": "int9"}, "int2 to int8 and codebook2 to codebook8"),
        ({"method": "int1"}, "int2 to int8"),
        ({"method": 8}, "int2 to int8"),
        ({"targets": []}, "targets must be some of weight, bias, input, output"),
        ({"targets": ["weights"]}, "targets must be"),
        ({"targets": ["weight", "weight"]}, "targets must be"),
        (
            {"method": "codebook4", "targets": ["weight", "input"]},
            "some of weight, not",
        ),
        ({"percentile": 40}, "percentile must be more than 50"),
        ({"freeze_after": 0}, "freeze_after must be a number of minibatches"),
        ({"begin": (1, "hour")}, "begin must be"),
        ({"targets": None}, "targets must be"),
        ({"targets": 3}, "targets must be"),
        ({"targets": [["weight"]]}, "targets must be"),
        ({"symmetric": "no"}, "symmetric must be True or False, not 'no'"),
        ({"per_channel": 1}, "per_channel must be True or False"),
    ],
)
def test_wrong_quantizations_are_refused(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Quantize(**{"layers": "/7", **options})
    assert "'/7'" in str(caught.value)


def test_numbers_of_numpy_are_numbers():
    prune = Prune(
        "l1",
        to=np.float32(0.5),
        granularity=(np.int64(2), 4),
        begin=(np.int64(1), "epoch"),
        end=(np.float32(2), "epoch"),
        steps=np.int64(4),
    )
    assert prune == Prune(
        "l1",
        layers="*",
        to=0.5,
        granularity=(2, 4),
        begin=(1, "epoch"),
        end=(2.0, "epoch"),
        steps=4,
    )
    quantize = Quantize(
        percentile=np.float32(99.5), freeze_after=np.int32(3), symmetric=np.True_
    )
    assert quantize == Quantize(percentile=99.5, freeze_after=3)
    for rule in (prune, quantize):
        json.dumps(rule.settings())


def test_the_order_of_targets_does_not_matter():
    rules = [
        Quantize("int8", targets=targets)
        for targets in ({"weight", "input"}, ("weight", "input"), ["input", "weight"])
    ]
    assert rules[0] == rules[1] == rules[2] and rules[0].targets[0] == "weight"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"curve": ["cubic"]}, "curve must be one of"),
        ({"granularity": (True, 4)}, "granularity must be one of"),
        ({"method": ["l1"]}, "must be one of magnitude"),
    ],
)
def test_wrong_prunings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Prune(**{"method": "l1", "end": (3, "epoch"), **options})
