"""A plan that is measured and chosen."""

import dataclasses

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import (
    Disk,
    Divisible,
    Machine,
    MemoryLimitError,
    Network,
    Plan,
    deferred_init,
)
from pipeline.start import plan_choice
from pipeline.start.plan_choice import VARIABLE, Wish, choose, known_plan, save
from pipeline.start.plans import Given

X = np.random.RandomState(0).normal(size=(32, 200)).astype(np.float32)
T = np.zeros(32, np.int32)


def model():
    return Divisible(*[L.Linear(200, 200) for _ in range(4)])


def deferred():
    with deferred_init():
        return model()


def wish(machine, make=deferred, **changes):
    found = Wish(make(), X, T, F.softmax_cross_entropy, Given(), machine, [1], None)
    return found._replace(**changes)


def chosen(*arguments, **changes):
    calls = []
    found = choose(wish(*arguments, **changes), lambda: calls.append(1))
    assert calls
    return found


#: Leaves few plans to choose from.
FEW = Given(4, "1f1b", "never")


def test_a_plan_for_all_ranks():
    found = chosen(Machine(2, memory=1e9), replicas=[1, 2])
    assert found.plan.n_ranks == 2
    assert found.plan.conditions.machine.memory == 1e9
    first, second, third = found.lines
    assert first.startswith("plan='auto': rank 0 measured 4 layers in microbatches of")
    assert "32, 8 and 2 samples" in first and "2 ranks of 953.7 MiB" in first
    assert second == f"chosen: {found.plan.headline}"
    assert "one rank would take" in third and "times as long" in third


def test_what_is_given_is_kept():
    given = Given(4, "gpipe", "always")
    plan = chosen(Machine(2), given=given).plan
    assert (plan.n_microbatches, plan.schedule, plan.recompute) == given[:3]


def test_messages_are_narrowed_where_the_link_is_slow():
    given = FEW._replace(message_dtype=("int8", "bf16"))
    found = chosen(Machine(2, network=Network(bandwidth=1e3)), given=given)
    pairs = {each.pair for each in found.plan.messages if each.is_narrowed}
    assert pairs == {("int8", "bf16")}
    assert any(
        line.startswith("messages between stages 0 and 1") for line in found.lines
    )
    plan = chosen(Machine(2, network=Network(bandwidth=1e12)), given=given).plan
    assert not any(each.is_narrowed for each in plan.messages)


def test_a_loss_that_counts():
    def lossfun(y, t):
        return F.softmax_cross_entropy(y, t), len(t)

    assert chosen(Machine(1), lossfun=lossfun).plan.cuts == [0, 4]


def large():
    return Divisible(*[L.Linear(1000, 1000) for _ in range(3)])


def test_a_host_that_is_too_small(monkeypatch):
    """Weights go to the disk if they are not made yet."""
    monkeypatch.setattr(plan_choice, "measure_disk", lambda *_, **__: Disk(1e9, 1e9))
    # Weights, gradients and a state of 48 MB all together; segments of 1 MiB.
    small, x = Machine(1, memory=3e7), np.ones((4, 1000), np.float32)
    with deferred_init():
        model = large()
    found = chosen(small, lambda: model, x=x, t=T[:4])
    assert found.plan.streamed
    assert found.lines[0].endswith(", as memory alone does not suffice")
    assert "streamed" in found.lines[1]
    with pytest.raises(MemoryLimitError):
        chosen(small, large, x=x, t=T[:4])


@pytest.mark.parametrize(
    "given, n_pipeline",
    [
        # Four replicas would have 8 samples each, and 2 have 16.
        (FEW._replace(n_microbatches=16), 2),
        # There are 4 layers, too few for 2 stages on each of 4 ranks.
        (Given(4, "interleaved", "never"), 2),
    ],
)
def test_numbers_of_replicas_that_cannot_be_are_left_out(given, n_pipeline):
    plan = chosen(Machine(4), given=given, replicas=[1, 2, 4]).plan
    assert plan.n_ranks == 4
    assert plan.n_ranks // plan.replicas >= n_pipeline


def test_no_plan_uses_all_ranks():
    with pytest.raises(ValueError, match="no plan uses all of 8 ranks for 4 layers"):
        chosen(Machine(8))


def test_no_minibatch():
    with pytest.raises(TypeError, match="needs a first minibatch on rank 0"):
        chosen(Machine(1), x=None)
    with pytest.raises(TypeError, match="needs t on rank 0"):
        chosen(Machine(1), t=None)
    chosen(Machine(1), t=None, lossfun=F.average)


def test_a_directory_that_cannot_be_written(tmp_path):
    """It is refused before anything is measured."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="cannot have the plan's file: .* Give a"):
            known_plan(model(), 2, path, {})


def test_a_plan_is_kept_for_the_next_run(tmp_path):
    directory = tmp_path / "result"
    assert known_plan(model(), 2, directory, {}) == (None, "")
    found = save(chosen(Machine(2), given=FEW), directory)
    path = directory / "plan.json"
    assert found.lines[3] == f"saved as {path}, from which a resumed run takes it"
    assert known_plan(model(), 2, directory, {}) == (found.plan, str(path))
    plan, why = known_plan(model(), 3, directory, {})
    assert plan is None and "is for 2 ranks, but there are 3" in why
    plan, why = known_plan(Divisible(abs), 2, directory, {})
    assert plan is None and "is of a model of 4 layers" in why
    path.write_text("{")
    assert "is not a plan" in known_plan(model(), 2, directory, {}).words
    assert "give directory" not in save(found, None).lines[-1]


def test_a_plan_of_the_command_line(tmp_path):
    plan = Plan([0, 2, 4], 4, "1f1b")
    plan.save(tmp_path / "own.json")
    environ = {VARIABLE: str(tmp_path / "own.json")}
    found = known_plan(model(), 2, None, environ)
    assert found.plan == plan and "by divisible run --plan" in found.words
    # A name may stand for several numbers of ranks.
    environ = {VARIABLE: str(tmp_path / "plan-{ranks}.json")}
    plan.save(tmp_path / "plan-2.json")
    found = known_plan(model(), 2, None, environ)
    assert found.plan == plan and "plan-2.json, by divisible run" in found.words
    with pytest.raises(FileNotFoundError, match=r"plan-3\.json"):
        known_plan(model(), 3, None, environ)
    environ = {VARIABLE: str(tmp_path / "own.json")}
    # It was asked for, so it is not replaced.
    with pytest.raises(ValueError, match="is for 2 ranks"):
        known_plan(model(), 3, None, environ)


def test_a_plan_says_what_it_was_made_for():
    plan = chosen(Machine(1)).plan
    assert plan.conditions.batch == 32
    assert dataclasses.replace(plan, alternatives=()) == plan
