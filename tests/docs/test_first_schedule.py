"""A new schedule is one function, one entry and one paragraph; all else follows."""

import re

import pytest

from divisible import LayerCost, Plan, Profile
from tests.support.first_change import NEEDS_GIT, ChangedCopy

NAME = "eager_1f1b"
TRAIN = f"""
import sys
from tests.docs.test_first_schedule import train
from tests.support.mpiexec import assert_on_ranks
from tests.support.ranks import close_shared_ranks
assert_on_ranks(2, train, {NAME!r})
close_shared_ranks()
"""
PLAN = f"""
from divisible import LayerCost, Machine, Network, Profile, best_plan, schedules
from divisible.planning.search import TRIED_BY_DEFAULT
assert {NAME!r} in schedules.NAMES and {NAME!r} in TRIED_BY_DEFAULT
assert schedules.eager_one_f_one_b.__name__ in schedules.__all__
profile = Profile([LayerCost(1, 1, 1, output_bytes=10)] * 4, n_samples=64)
machine = Machine(4, network=Network(latency=0.05))
options = dict(recompute=["never"], schedules=["1f1b", {NAME!r}])
plan = best_plan(profile, machine, **options)
assert plan.schedule == {NAME!r}, plan
"""
PAGES = f"""
import sys
sys.path.append("docs/_extensions")
import schedule_tables
for make in (schedule_tables.choices, schedule_tables.comparison):
    assert any({NAME!r} in line for line in make())
assert any("eager_one_f_one_b" in line for line in schedule_tables.functions())
"""


def train(comm, schedule):
    """Trains with it on a rank each, as the undivided model is trained."""
    from tests.support.equivalence import check_equal, make_batches, tuple_model

    cuts = Plan.uniform(4, comm.size).cuts
    batches = make_batches([8, 5, 2])
    options = {"n_microbatches": 3, "schedule": schedule}
    check_equal(comm, tuple_model, cuts, batches, **options)


@pytest.mark.slow
@NEEDS_GIT
def test_a_new_schedule(tmp_path):
    changed = ChangedCopy(tmp_path, "schedule.patch")
    assert changed.touched == [
        "divisible/schedules/catalogue.py",
        "divisible/schedules/generators.py",
        "docs/explanation/schedules.rst",
    ]

    # The doctests of function and page, the golden grids and the proofs.
    tests = "tests/divisible/schedules/test_generators.py"
    files = ["divisible/schedules/generators.py", "docs/explanation/schedules.rst"]
    chosen = f"{NAME} or eager_one_f_one_b or schedules.rst"
    options = ["-q", "-p", "no:cacheprovider", "-rA", "-k", chosen]
    output = changed.python("-m", "pytest", *options, tests, *files)
    for passed in (
        f"test_every_schedule_shows_its_grid[{NAME}]",
        f"test_stages_lie_as_the_catalogue_says[{NAME}]",
        f"test_one_rank_and_one_microbatch[{NAME}]",
        "generators.eager_one_f_one_b",
        "schedules.rst::schedules.rst",
    ):
        assert re.search(rf"PASSED .*{re.escape(passed)}", output), output

    # The pipeline, the search, the command line, the tables.
    changed.python("-c", TRAIN)
    changed.python("-c", PLAN)
    Profile([LayerCost(1, 1, 1)] * 4, n_samples=8).save(changed.path / "profile.json")
    Plan([0, 2, 4], n_microbatches=8, schedule="1f1b").save(changed.path / "plan.json")
    command = ["-c", "from pipeline.command_line.main import main; main()"]
    simulate = [*command, "simulate", "plan.json", "profile.json"]
    assert NAME in changed.python(*simulate, "--schedule", NAME)
    assert NAME in changed.python(*command, "plan", "--help")
    pytest.importorskip("sphinx", reason="the tables are made by Sphinx")
    changed.python("-c", PAGES)
