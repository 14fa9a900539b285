"""A new schedule is one function, one entry and one paragraph; all else follows."""

import pytest

from tests.support.first_change import NEEDS_GIT, ChangedCopy, touched

NAME = "eager_1f1b"


@NEEDS_GIT
def test_the_patch_fits():
    assert touched("schedule.patch") == [
        "divisible/schedules/catalogue.py",
        "divisible/schedules/generators.py",
        "docs/explanation/schedules.rst",
    ]


@pytest.mark.matrix
@NEEDS_GIT
def test_a_new_schedule(tmp_path):
    changed = ChangedCopy(tmp_path, "schedule.patch")
    # The doctests of function and page, the golden grids and the proofs. Then the
    # pipeline, the search, the command line, the tables.
    files = [
        "tests/divisible/schedules/test_generators.py",
        "divisible/schedules/generators.py",
        "docs/explanation/schedules.rst",
        "tests/docs/changed_schedule.py",
    ]
    chosen = f"{NAME} or eager_one_f_one_b or schedules.rst or changed_schedule"
    passed = changed.passed(*files, "-k", chosen)
    for name in (
        f"test_every_schedule_shows_its_grid[{NAME}]",
        f"test_stages_lie_as_the_catalogue_says[{NAME}]",
        f"test_one_rank_and_one_microbatch[{NAME}]",
        "generators.eager_one_f_one_b",
        "schedules.rst::schedules.rst",
        "changed_schedule.py::test_it_trains_as_the_undivided_model",
    ):
        assert any(each.endswith(name) for each in passed), passed
