import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import LayerCost, Plan, Profile
from divisible.planning.expected_costs import StagePlan


@given(st.integers(1, 60), st.data())
def test_uniform_covers_every_layer_evenly(n_layers, data):
    n_stages = data.draw(st.integers(1, n_layers))
    plan = Plan.uniform(n_layers, n_stages)
    ranges = [plan.range(stage) for stage in range(n_stages)]
    assert [i for start, end in ranges for i in range(start, end)] == list(
        range(n_layers)
    )
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert (plan.n_stages, plan.n_layers) == (n_stages, n_layers)


def test_saved_and_loaded(tmp_path):
    plan = Plan([0, 7, 15])
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("text", ["{}", "[0, 3]", "no JSON", '{"cuts": [3]}'])
def test_a_file_that_is_no_plan(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match="is not a plan"):
        Plan.load(tmp_path / "plan.json")


def test_cuts_are_integers():
    with pytest.raises(TypeError):
        Plan([0, 2.7, 5])


@pytest.mark.parametrize("cuts", [[], [0], [1, 3], [0, 2, 2], [0, 3, 1]])
def test_bad_cuts_are_refused(cuts):
    with pytest.raises(ValueError, match="cuts"):
        Plan(cuts)


@pytest.mark.parametrize("n_stages", [0, 5])
def test_more_stages_than_layers(n_stages):
    with pytest.raises(ValueError, match="at least one layer"):
        Plan.uniform(4, n_stages)


def test_numbers_of_numpy_are_saved(tmp_path):
    plan = Plan([0, 2, 5], n_microbatches=np.int64(8), replicas=np.int32(2))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    cost = LayerCost(np.float32(0.5), 0, 0, output_bytes=np.prod([3, 4]) * 4)
    profile = Profile([cost], n_samples=np.int64(3))
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


def test_samples_are_whole():
    with pytest.raises(TypeError, match="integer"):
        Profile([LayerCost(1, 1, 1)], n_samples=2.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages_per_rank": 2}, "3 stages, which do not lie 2 on each rank"),
        ({"recompute": "sometimes"}, "recompute must be one of never"),
        ({"n_microbatches": 0}, "n_microbatches must be a positive integer"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Plan([0, 1, 2, 3], **arguments)


def test_numbers_of_numpy_in_stages_are_saved(tmp_path):
    stage = StagePlan(np.float32(0.5), np.float64(0), np.int64(5), np.float64(8))
    plan = Plan([0, 2], stages=[stage], step_seconds=np.float32(1.5))
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert (loaded.stages, loaded.step_seconds) == (plan.stages, 1.5)


def test_range_of_no_stage():
    with pytest.raises(IndexError, match="1 stage, 1 on each rank, and is for 1 rank"):
        Plan([0, 1]).range(1)


def test_chains_that_are_fused_are_kept(tmp_path):
    plan = Plan([0, 4, 9], fusion=[(1, 3), np.array([4, 7])])
    assert plan.fusion == ((1, 3), (4, 7))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("fusion", [[(3, 1)], [(0, 10)], [(1, 2, 3)], [3], "1-3"])
def test_what_is_no_chain_of_the_model_is_refused(fusion):
    with pytest.raises((TypeError, ValueError), match="fusion|must be a list"):
        Plan([0, 4, 9], fusion=fusion)


@pytest.mark.parametrize(
    ("now", "before"), [("recompute", "checkpoint"), ("exchange_dtype", "wire_dtype")]
)
def test_a_file_with_an_earlier_name_of_a_field_is_read(tmp_path, now, before):
    path = tmp_path / "plan.json"
    plan = Plan([0, 3, 5], 4, "1f1b", "except_last", 2, exchange_dtype="int8")
    plan.save(path)
    text = path.read_text()
    assert f'"{now}"' in text
    path.write_text(text.replace(f'"{now}"', f'"{before}"'))
    assert Plan.load(path) == plan
