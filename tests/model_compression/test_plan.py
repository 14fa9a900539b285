import chainer
import chainer.links as L
import pytest

from model_compression import CompressionPlan, Prune, Quantize
from model_compression.selection import weighted_layers

PLAN = CompressionPlan(
    [
        Prune(
            "magnitude", layers="Linear", to=0.9, begin=(1, "epoch"), end=(8, "epoch")
        ),
        Prune(
            "taylor",
            layers=["/0", "/2*"],
            to=0.25,
            granularity=(2, 4),
            begin=(30, "iteration"),
        ),
        Quantize(
            "int8",
            layers="*",
            targets=["weight", "input"],
            begin=(9, "epoch"),
            freeze_after=100,
        ),
        Quantize("codebook4", layers="/4", percentile=99.9, symmetric=False),
    ]
)


def test_a_plan_is_what_was_saved(tmp_path):
    PLAN.save(tmp_path / "plan.json")
    again = CompressionPlan.load(tmp_path / "plan.json")
    assert again == PLAN and str(again) == str(PLAN)


def test_a_plan_is_a_table():
    lines = [" ".join(line.split()) for line in str(PLAN).splitlines()]
    assert lines == [
        "layers method degree granularity progress",
        "'Linear' prune magnitude 90% element 10 steps, cubic, from epoch 1 to epoch 8",
        "['/0', '/2*'] prune taylor 25% blocks of 2 x 4 at iteration 30",
        "'*' quantize int8 8 bits weight, input, each output at epoch 9",
        "'/4' quantize codebook4 4 bits weight at iteration 0",
    ]


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "is not a compression plan"),
        ('{"cuts": [0, 3]}', "another kind of file"),
        ('{"divisible": "compression plan", "rules": 3}', "its rules are 3"),
        ('{"divisible": "compression plan", "rules": [{}]}', "rule 0, .* incomplete"),
        (
            '{"divisible": "compression plan", "rules": [{"rule": "prune", "method":'
            ' "l1", "layers": ["*"], "to": 2, "granularity": "row", "begin": [0,'
            ' "epoch"], "end": null, "steps": null, "curve": "cubic"}]}',
            "to must be between 0 and 1, not 2",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, content, words):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        CompressionPlan.load(path)
    assert str(path) in str(caught.value)


def test_two_rules_for_one_target_are_refused():
    layers = weighted_layers(chainer.Sequential(L.Linear(4, 3), L.Linear(3, 2)))
    plan = CompressionPlan([Prune("l1", layers="*"), Prune("l2", layers="/1")])
    words = "the zeros of the weights of /1: number 0, .*, and number 1, Prune"
    with pytest.raises(ValueError, match=words):
        plan.layers_of_rules(layers)


def test_one_rule_twice_is_refused():
    layers = weighted_layers(chainer.Sequential(L.Linear(4, 3)))
    rule = Prune("l1", layers="*")
    with pytest.raises(ValueError, match="number 0, .*, and number 1"):
        CompressionPlan([rule, rule]).layers_of_rules(layers)


@pytest.mark.parametrize("rules", [[], ["l1"], [Prune], Prune("l1"), "l1", None, PLAN])
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises((TypeError, ValueError), match="rule"):
        CompressionPlan(rules)
