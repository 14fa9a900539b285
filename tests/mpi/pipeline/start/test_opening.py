"""Plans that ranks do not agree on are refused on all of them, and nobody waits."""

import warnings

import chainer
import chainer.functions as F
import pytest

from data_parallel import Grid
from divisible import Machine, Plan
from pipeline import DisagreementError, Pipeline
from pipeline.start.plan_choice import VARIABLE
from tests.support.mpiexec import assert_on_ranks
from tests.support.planned_runs import make_minibatch, make_model

PLAN = Plan([0, 2, 6], 4, "1f1b")
#: Ranks that refuse what they are given themselves.
BOTH = {0: ValueError, 1: ValueError}


def refused(comm, words, own, model=None, **arguments):
    """On each rank with the words for it; on its own ranks as what it is."""
    error = own.get(comm.rank, DisagreementError)
    model = make_model() if model is None else model
    with pytest.raises(error, match=words):
        Pipeline(model, comm, timeout=20, **arguments)


def different_plans(comm):
    plan = [PLAN, Plan([0, 3, 6], 4, "1f1b")][comm.rank]
    refused(comm, "different plans: cuts is", {}, plan=plan)


def a_plan_on_one_rank(comm):
    """The other one divides by hand, or wants equal layers."""
    words = "refuses to start: it is given (no plan|plan=)"
    plan = [PLAN, None][comm.rank]
    for model in (None, make_model().divide(3, 6)):
        given = {} if comm.rank == 0 else {"n_microbatches": 4}
        refused(comm, words, {}, model if plan is None else None, plan=plan, **given)


def a_plan_for_others(comm):
    plan = Plan([0, 2, 4, 6], 4, "1f1b")
    refused(
        comm,
        "is for 3 ranks, but there are 2",
        BOTH,
        plan=plan,
    )


def a_stage_for_a_model(comm):
    model = [make_model(), make_model().divide(3, 6)][comm.rank]
    words = "a stage with the layers 3 to 5, but a plan is for the undivided model"
    refused(comm, words, {1: ValueError}, model, plan=PLAN)


def no_such_file(comm):
    words = "no_such_plan.json"
    refused(comm, words, {0: FileNotFoundError}, plan="/tmp/no_such_plan.json")


def no_plan_at_all(comm):
    refused(
        comm,
        "plan must be a Plan, the name of a file, or 'auto'",
        {0: TypeError, 1: TypeError},
        plan=3,
    )


def other_given_arguments(comm):
    refused(
        comm,
        "n_microbatches differs between rank 0 and rank 1",
        {},
        plan=PLAN,
        n_microbatches=3 + comm.rank,
    )


def a_schedule_of_other_stages(comm):
    refused(
        comm,
        "does not go with schedule='zb_v'",
        BOTH,
        plan=PLAN,
        schedule="zb_v",
    )


def a_bad_argument_besides(comm):
    words, seed = "seed must be from 0", [0, -1][comm.rank]
    refused(comm, words, {1: ValueError}, plan=PLAN, seed=seed)


def arguments_of_another_plan(comm):
    x, _ = make_minibatch(4)
    refused(
        comm,
        "x, directory are for plan='auto'",
        BOTH,
        plan=PLAN,
        x=x,
        directory="here",
    )


def arguments_of_a_plan_that_is_not_given(comm):
    """A forgotten plan='auto' is not taken for equal layers."""
    x, t = make_minibatch(4)
    words = "x, t are for plan='auto', .* but there is no plan: give plan='auto'"
    refused(comm, words, BOTH, n_microbatches=2, x=x, t=t)
    stage = make_model().divide(*PLAN.range(comm.rank))
    words, machine = "machine is for plan='auto'", [None, Machine(2)][comm.rank]
    refused(comm, words, {1: ValueError}, stage, n_microbatches=2, machine=machine)


def another_machine(comm):
    refused(
        comm,
        "machine has 3 ranks, but there are 2",
        BOTH,
        plan="auto",
        machine=Machine(3),
    )


def no_directory(comm):
    words, own = "directory must be a path, not int", {0: TypeError, 1: TypeError}
    refused(comm, words, own, plan="auto", directory=3)


def no_microbatches(comm):
    words = "n_microbatches must be at least 1, not 0"
    refused(comm, words, BOTH, plan=PLAN, n_microbatches=0)
    refused(comm, words, BOTH, n_microbatches=0)
    words, own = "must be an int, not '4'", {0: TypeError, 1: TypeError}
    refused(comm, words, own, n_microbatches="4")
    refused(comm, "is missing: give it, or a Schedule", BOTH)


def no_minibatch(comm):
    refused(
        comm,
        "needs a first minibatch on rank 0",
        {0: TypeError},
        plan="auto",
        machine=Machine(2),
    )


def a_layer_that_fails(comm):
    """While rank 0 measures it; the other one hears why."""
    model = make_model()
    model.append(F.reshape)
    x, t = make_minibatch(4)
    words = "rank 0 refuses to start: TypeError: .*reshape|reshape.* missing"
    refused(
        comm, words, {0: TypeError}, model, plan="auto", x=x, t=t, machine=Machine(2)
    )


def a_grid_of_another_plan(comm):
    with Grid(comm, 2) as grid:
        words = "has 2 replicas, but the grid has 1"
        plan = Plan([0, 6], 4, "1f1b", replicas=2)
        with pytest.raises(ValueError, match=words):
            Pipeline(make_model(), grid, plan=plan)


def nobody_averages(comm):
    plan = Plan([0, 6], 4, "1f1b", replicas=2)
    with Pipeline(make_model(), comm, plan=plan, timeout=20) as pipe:
        with pytest.raises(RuntimeError, match="has 2 replicas, but nothing averages"):
            pipe.step(*make_minibatch(4))
        with pytest.raises(TypeError, match="one optimizer for all stages"):
            pipe.setup([chainer.optimizers.SGD()])
        pipe.setup(chainer.optimizers.SGD())
        pipe.step(*make_minibatch(4))


def refusals(comm, *names):
    for name in names:
        globals()[name](comm)


def test_refusals():
    """All on the same ranks, which go on after each."""
    names = [
        "different_plans",
        "a_plan_on_one_rank",
        "a_plan_for_others",
        "a_stage_for_a_model",
        "no_such_file",
        "no_plan_at_all",
        "other_given_arguments",
        "a_schedule_of_other_stages",
        "a_bad_argument_besides",
        "arguments_of_another_plan",
        "arguments_of_a_plan_that_is_not_given",
        "another_machine",
        "no_directory",
        "no_microbatches",
        "no_minibatch",
        "a_layer_that_fails",
        "a_grid_of_another_plan",
        "nobody_averages",
    ]
    assert_on_ranks(2, refusals, *names, timeout=120)


def a_file(comm, path):
    """Rank 0's, which alone need have it."""
    if comm.rank == 0:
        PLAN.save(path)
    mine = path if comm.rank == 0 else "/nowhere/plan.json"
    with Pipeline(make_model(), comm, plan=mine, timeout=20) as pipe:
        assert pipe.plan == PLAN


def a_plan_of_the_command_line(comm):
    """A script that does not ask for it is told so, by rank 0."""
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        patch.setenv(VARIABLE, "own.json")
        for given in ({"plan": PLAN}, {"n_microbatches": 2}):
            Pipeline(make_model(), comm, timeout=20, **given).close()
    words = [str(each.message) for each in w if "run --plan" in str(each.message)]
    assert len(words) == 2 * (comm.rank == 0)
    assert all("give it plan='auto'" in each for each in words)


def test_a_plan_of_the_command_line():
    assert_on_ranks(2, a_plan_of_the_command_line)


def test_a_file(tmp_path):
    assert_on_ranks(2, a_file, str(tmp_path / "plan.json"))
