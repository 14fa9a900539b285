import pytest

from model_compression import Prune, Quantize


@pytest.mark.parametrize("to", [0, 1, -0.1, 1.5, "half", True, None, float("nan")])
def test_a_degree_outside_0_to_1_is_refused(to):
    with pytest.raises(ValueError, match="to must be between 0 and 1") as caught:
        Prune("l2", "/3", to=to)
    assert "'/3'" in str(caught.value)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="none of magnitude, l1, l2, taylor"):
        Prune("random")


@pytest.mark.parametrize("layers", [[], "", [3], None, ["/0", ""]])
def test_layers_that_are_no_texts_are_refused(layers):
    with pytest.raises(ValueError, match="layers must be a class's name"):
        Prune("l1", layers)


def test_a_rule_begins_at_once_in_the_unit_of_its_end():
    assert Prune("l1", end=(8, "epoch")).progress.begin == (0, "epoch")
    assert Prune("l1").progress.begin == (0, "iteration")


def test_an_end_before_the_beginning_is_refused_with_the_rule():
    with pytest.raises(ValueError, match=r"Prune\('l1', layers='/0'\): it ends at"):
        Prune("l1", "/0", begin=(3, "epoch"), end=(2, "epoch"))


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
    ],
)
def test_wrong_quantizations_are_refused(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Quantize(**{"layers": "/7", **options})
    assert "'/7'" in str(caught.value)
