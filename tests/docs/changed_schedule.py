"""What holds of the schedule of a first change. Runs in a copy that has it."""

import pytest
from click.testing import CliRunner

from divisible import LayerCost, Machine, Network, Plan, Profile, best_plan, schedules
from divisible.planning.search import TRIED_BY_DEFAULT
from pipeline.command_line.main import main
from tests.support.equivalence import check_equal, make_batches, tuple_model
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import ROOT

NAME = "eager_1f1b"


def test_it_is_in_the_catalogue():
    assert NAME in schedules.NAMES and NAME in TRIED_BY_DEFAULT
    assert schedules.eager_one_f_one_b.__name__ in schedules.__all__


def train(comm):
    cuts = Plan.uniform(4, comm.size).cuts
    batches = make_batches([8, 5, 2])
    check_equal(comm, tuple_model, cuts, batches, n_microbatches=3, schedule=NAME)


def test_it_trains_as_the_undivided_model():
    assert_on_ranks(2, train)


def test_the_search_chooses_it_where_messages_take_long():
    profile = Profile([LayerCost(1, 1, 1, output_bytes=10)] * 4, n_samples=64)
    machine = Machine(4, network=Network(latency=0.05))
    options = {"recompute": ["never"], "schedules": ["1f1b", NAME]}
    assert best_plan(profile, machine, **options).schedule == NAME


def test_commands_know_it(tmp_path):
    plan, profile = str(tmp_path / "plan.json"), str(tmp_path / "profile.json")
    Profile([LayerCost(1, 1, 1)] * 4, n_samples=8).save(profile)
    Plan([0, 2, 4], n_microbatches=8, schedule="1f1b").save(plan)
    for command in (
        ["simulate", plan, profile, "--schedule", NAME],
        ["plan", "--help"],
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0 and NAME in result.output, result.output


def test_pages_have_it(monkeypatch):
    pytest.importorskip("sphinx", reason="the tables are made by Sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    import schedule_tables

    for make in (schedule_tables.choices, schedule_tables.comparison):
        assert any(NAME in line for line in make())
    assert any("eager_one_f_one_b" in line for line in schedule_tables.functions())
