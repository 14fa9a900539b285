import errno
import itertools
import json
import os
import re
import resource
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from divisible import Disk, LayerCost, Machine, Network, Plan, Profile, simulate
from divisible.planning.conditions import Conditions
from divisible.schedules import Costs, Schedule, one_f_one_b
from divisible.schedules.comparison import CAUSES
from divisible.schedules.timeline import Timeline
from pipeline.command_line.main import main
from pipeline.command_line.model_argument import make_model
from tests.support.broken_files import broken
from tests.support.examples import examples

MODELS = """
import chainer.functions as F
import chainer.links as L
from helper import WIDTH
from divisible import Divisible


class MLP(Divisible):
    def __init__(self, width=WIDTH, n_layers=2):
        for _ in range(n_layers):
            self.append(L.Linear(width, width))
            self.append(F.relu)


def words(n=7):
    return Divisible(L.EmbedID(n, 4), L.Linear(None, 3))


def unshapely():
    return Divisible(F.relu, lambda x: F.relu(x.array.reshape(7, 7)))


ready = Divisible(F.relu)
number = 3


def nothing():
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "models_of_test.py").write_text(MODELS)
    (tmp_path / "helper.py").write_text("WIDTH = 6\n")
    monkeypatch.chdir(tmp_path)
    # Where tests run in parallel, something tells another width.
    monkeypatch.setenv("COLUMNS", "160")
    # What is imported from here must not stay for the next test.
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("models_of_test", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


def profiles(folder):
    """Two profiles, at one and at eight samples."""
    for n in (1, 8):
        layers = [
            LayerCost(
                0.01 + 0.01 * n,
                0.01 * n,
                0.01 * n,
                output_bytes=1000 * n,
                activation_bytes=5000 * n,
                parameter_bytes=4000,
                name=f"[layer] {i}",
            )
            for i in range(6)
        ]
        Profile(layers, n, input_bytes=1000 * n).save(folder / f"profile-{n}.json")
    return folder / "profile-1.json", folder / "profile-8.json"


def test_a_closed_pipe_loses_no_file(folder, monkeypatch):
    def print_table(*arguments, **options):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("pipeline.command_line.console.print_table", print_table)
    arguments = ("--input", "6", "--batch", "1", "--repeat", "1")
    run("profile", "models_of_test:MLP", *arguments, code=1)
    assert len(Profile.load("profile.json")) == 4
    run("plan", "profile.json", "--stages", 2, code=1)
    assert Plan.load("plan.json").n_stages == 2


def test_from_profile_to_timeline(folder):
    output = run(
        *("profile", "models_of_test.py:MLP(8, n_layers=3)", "--input", "8"),
        *("--batch", "6,2", "--optimizer", "MomentumSGD", "--repeat", "3"),
        *("--plot", "profile.png"),
    )
    assert "Linear(in_size=8" in output
    assert "written to profile-6.json" in output
    assert (folder / "profile-2.png").exists()
    costs = Profile.load("profile-6.json")
    assert len(costs) == 6
    assert f"timings scattered by {costs.scatter:.1%}" in output
    assert costs.loss.name == "softmax_cross_entropy"
    assert costs.layers[0].optimizer_bytes == costs.layers[0].parameter_bytes

    files = ["profile-6.json", "profile-2.json"]
    output = run(
        *("plan", *files, "--ranks", "2", "--memory", "1GiB", "--bandwidth", "1Gbit/s"),
        *("--latency", "10us", "--plot", "plan.png"),
    )
    assert "not chosen" in output
    plan = Plan.load("plan.json")
    assert plan.n_layers == 6
    assert plan.certainty and plan.certainty in output
    assert f"cut at {plan.cuts}" in output
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")

    output = run(
        *("simulate", "plan.json", *files, "--plot", "step.svg", "-o", "step.json")
    )
    assert "bubble" in output and "memory" in output
    assert "% above the bound" in output
    assert "<svg" in (folder / "step.svg").read_text()
    again = run("timeline", "step.json", "--plot", "again.png")
    assert again.count("rank") >= 1 and "% above the bound" in again
    assert (folder / "again.png").exists()

    both = ("--against", "step.json", "--plot", "both.svg")
    output = run("timeline", "step.json", *both)
    name = Timeline.load("step.json").name
    assert name == plan.title and f"cut at {plan.cuts}" in name
    output = " ".join(output.split())
    assert f"predicted for {name}: " in output and "lost 0, of which" in output
    picture = (folder / "both.svg").read_text()
    assert f"predicted for {name}: " in picture
    assert all(cause in output for cause in CAUSES)
    assert "<svg" in (folder / "both.svg").read_text()
    output = run("simulate", "plan.json", "--minibatches", 3, "-o", "three.json")
    assert "the last minibatch adds" in output
    three = Timeline.load("three.json")
    assert three.n_minibatches == 3
    step = Timeline.load("step.json").makespan
    assert 0 < three.minibatch_seconds <= step * 1.001
    run("simulate", "plan.json", *files, "--microbatches", "6", "-o", "other.json")
    output = run("timeline", "other.json", *both, code=1)
    assert "is not in the predicted timeline: predict the step" in output


def test_the_shortest_schedule_of_a_plan(folder):
    small, _ = profiles(folder)
    run("plan", small, "--stages", 3, "--schedule", "1f1b", "--microbatches", 4)
    output = run("schedule", "search", "plan.json", "--held", 2, "--plot", "order.png")
    assert "at most 0.0% above the bound under this limit of memory" in output
    assert "written to schedule.txt" in output
    assert (folder / "order.png").exists()
    schedule = Schedule.parse((folder / "schedule.txt").read_text())
    assert max(schedule.validate().held) <= 2
    shown = run(
        "schedule", "search", "plan.json", small, "--seconds", 0, "-o", "list.txt"
    )
    assert "list" in shown and (folder / "list.txt").exists()
    # As many microbatches as 1F1B holds.
    schedule = Schedule.parse((folder / "list.txt").read_text())
    assert schedule.validate().held <= (3, 2, 1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"recompute": "always"}, "recompute='always', for which no order"),
        ({"weight_groups": 2}, "weight_groups=2"),
        ({"stage_groups": [2, 1]}, "stage_groups="),
        ({"schedule": None}, "does not say schedule"),
    ],
)
def test_plans_without_a_shortest_schedule(folder, options, message):
    small, _ = profiles(folder)
    options = {"schedule": "1f1b", "n_microbatches": 4, **options}
    Plan([0, 2, 6], **options).save(folder / "plan.json")
    assert message in run("schedule", "search", "plan.json", small, code=1)


def test_warnings_come_without_the_line_of_code(folder, monkeypatch):
    shown = itertools.cycle([1.0, 1.0, 1.0, 9.0])
    monkeypatch.setattr(
        "divisible.planning.timed_phases.stopwatch",
        lambda device: lambda run: (run(), next(shown))[1],
    )
    output = run("profile", "models_of_test.py:ready", "--input", "8", "--batch", "2")
    assert "warning: the layers took" in output
    assert "RuntimeWarning" not in output and "main.py" not in output


def test_a_cut_by_its_method(folder):
    small, _ = profiles(folder)
    assert "[0, 2, 4, 6]" in run("plan", small, "--stages", 3)
    output = run(
        *("plan", small, "--stages", 2, "--method", "time", "--schedule", "gpipe"),
        *("--microbatches", 4, "--recompute", "always", "-o", "other.json"),
    )
    assert "gpipe schedule, 4 microbatches, recomputation always" in output
    assert Plan.load("other.json").recompute == "always"
    output = run("plan", small, "--stages", 2, "--speeds", "1,2")
    assert "[0, 2, 6]" in output


def test_replicas_and_what_their_exchange_costs(folder):
    small, large = profiles(folder)
    arguments = ["plan", small, large, "--ranks", 4, "--bandwidth", "1MB/s"]
    arguments += ["--schedule", "1f1b", "--weight-groups", 1]
    output = run(*arguments, "--replicas", 4, "--exchange-dtype", "int8")
    plan = Plan.load("plan.json")
    assert (plan.replicas > 1, plan.exchange_dtype) == (True, "int8")
    assert f"{plan.replicas} replicas, gradients in int8" in output
    assert f"exchange of gradients: {plan.exchange}" in output
    assert plan.placement(["a"] * plan.n_ranks) == "stages_together"
    simulate = ["simulate", "plan.json", small, large]
    output = run(*simulate, "-o", "coded.json")
    assert f"{plan.replicas} replicas, gradients in int8" in output
    assert "other" in output
    output = run(*simulate, "--exchange-dtype", "fp32", "-o", "exact.json")
    assert f"{plan.replicas} replicas, gradients in fp32" in output
    coded, exact = map(Timeline.load, ("coded.json", "exact.json"))
    assert coded.makespan == pytest.approx(plan.step_seconds)
    assert exact.makespan > coded.makespan
    output = run(*arguments, "--replicas", 4, "--error-feedback")
    assert "gradients in fp32 with error feedback" in output
    run(*arguments)
    output = run(*simulate, "--exchange-dtype", "fp32", code=2)
    assert "--exchange-dtype: the plan has no replicas" in output


def test_what_memory_has_no_room_for_is_on_disk(folder):
    layer = LayerCost(
        *(1.0, 1.0, 1.0),
        parameter_bytes=10**9,
        optimizer_bytes=10**9,
        streamable_bytes=10**9,
    )
    Profile([layer] * 2, 8).save("large.json")
    arguments = ["plan", "large.json", "--ranks", 1, "--memory", "5.5GB"]
    assert "fits" in run(*arguments, code=1)
    output = run(*arguments, "--disk", "4GB/s,2GB/s", "--plot", "plan.png")
    assert "layers 0 streamed" in output
    assert Plan.load("plan.json").streamed == (0,)
    simulate = ["simulate", "plan.json", "large.json"]
    fast = run(*simulate, "-o", "fast.json")
    assert "disks that read 4 GB/s and write 2 GB/s" in fast
    assert "memory" in fast
    run(*simulate, "--disk", "1GB/s", "-o", "slow.json")
    fast, slow = (Timeline.load(f"{name}.json").makespan for name in ("fast", "slow"))
    assert fast < slow
    assert "3 rates" in run(*simulate, "--disk", "1,2,3", code=1)
    output = run("plan", "large.json", "--stages", 2, "--disk", "1GB/s", code=2)
    assert "--disk goes with --ranks" in output


def test_a_simulation_of_something_else(folder):
    files = profiles(folder)
    run("plan", *files, "--stages", 2, code=2)
    run("plan", files[1], "--stages", 2)
    saved = json.loads((folder / "plan.json").read_text())
    assert saved["n_microbatches"] is None
    output = run("simulate", "plan.json", *files, code=2)
    assert "does not say how many microbatches" in output
    assert "give --microbatches" in " ".join(output.split())
    Plan([0, 3, 6], n_microbatches=4).save(folder / "bare.json")
    output = run("simulate", "bare.json", *files, code=2)
    assert "does not name a schedule: give --schedule" in " ".join(output.split())
    run(
        *("simulate", "plan.json", *files, "--microbatches", 4, "--schedule", "gpipe"),
        *("--batch", 32, "-o", "t.json", "--no-overlap", "--bandwidth", "1MB/s"),
    )
    timeline = Timeline.load("t.json")
    assert timeline.name == "gpipe, 4 microbatches, cut at [0, 3, 6]"
    # Eight samples in each microbatch: five turns, and what is sent.
    assert timeline.makespan > 5 * 3 * (0.09 + 0.08 + 0.08)


def test_a_plan_is_simulated_for_what_it_was_made_for(folder, monkeypatch):
    files = profiles(folder)
    machine = ("--speeds", "1,0.5,1", "--bandwidth", "50kB/s", "--latency", "20ms")
    many = ("--batch", 48, "--memory", "1GiB", "--schedule", "1f1b")
    many += ("--weight-groups", 1)
    (folder / "plans").mkdir()
    output = run(
        *("plan", *files, "--ranks", 3, *machine, *many, "-o", "plans/plan.json")
    )
    conditions = (
        "overlapping minibatches of 48 samples on 3 ranks of 1.0 GiB, speeds 1, 0.5, 1,"
        " links of 50 kB/s with 20 ms of latency"
    )
    assert f"for {conditions}" in " ".join(output.split())
    # One of them is simulated.
    conditions = conditions.replace("overlapping minibatches", "a minibatch")
    plan = Plan.load("plans/plan.json")
    # Without a word on machine, minibatch and profiles, and from another folder.
    for where, name in ((folder, "plans/plan.json"), (folder / "plans", "plan.json")):
        monkeypatch.chdir(where)
        output = run("simulate", name, "-o", "t.json")
        assert f"as the plan was made for: {conditions}" in " ".join(output.split())
        timeline = Timeline.load("t.json")
        assert timeline.makespan == pytest.approx(plan.step_seconds)
        assert timeline.bubble.mean() == pytest.approx(plan.bubble)
        assert f", bubble {plan.bubble:.1%}" in output
    # One value changes, and the others stay.
    output = " ".join(run("simulate", "plan.json", "--latency", "0").split())
    assert "unlike what the plan was made for (network): a minibatch of 48" in output
    assert "speeds 1, 0.5, 1, links of 50 kB/s 1f1b, 12 mi" in output
    output = run("simulate", "plan.json", "--batch", 24, "--microbatches", 2)
    assert "unlike what the plan was made for (n_microbatches, batch)" in output
    waits = ("--no-overlap-minibatches", "-o", "waits.json")
    output = run("plan", *files, "--ranks", 3, *machine, *many, *waits)
    assert "for a minibatch of 48 samples" in " ".join(output.split())
    output = run("plan", files[0], "--stages", 2, *waits, code=2)
    assert "--no-overlap-minibatches goes with --ranks" in " ".join(output.split())


def test_groups_of_weight_gradients(folder):
    files = profiles(folder)
    given = "--ranks", 2, "--batch", 64, "--schedule", "zb_h1"
    run("plan", *files, *given, "--weight-groups", "1,2")
    assert Plan.load("plan.json").weight_groups in (1, 2)
    output = run("simulate", "plan.json", "--microbatches", 8, "--weight-groups", 8)
    assert "W in groups of 8" in " ".join(output.split())
    run("simulate", "plan.json", "--weight-groups", 0, code=2)
    output = run("plan", files[0], "--stages", 2, "--weight-groups", "2", code=2)
    assert "--weight-groups goes with --ranks" in " ".join(output.split())


def test_profiles_that_a_plan_names_may_have_changed_or_gone(folder):
    _, file = profiles(folder)
    run("plan", file, "--ranks", 2, "--schedule", "1f1b")
    assert "a step: it was made from" not in run("simulate", "plan.json")
    slower = Profile.load(file)
    layers = [replace(layer, forward=1.0) for layer in slower.layers]
    replace(slower, layers=layers).save(file)
    assert "a step: it was made from other profiles" in run("simulate", "plan.json")
    file.unlink()
    output = " ".join(run("simulate", "plan.json", code=2).split())
    assert "which is no file here: give the profiles after the plan" in output


def test_an_old_plan_has_no_conditions(folder):
    files = profiles(folder)
    old = {"divisible": "plan", "cuts": [0, 3, 6], "schedule": "1f1b", "replicas": 1}
    (folder / "old.json").write_text(json.dumps({**old, "n_microbatches": 2}))
    output = " ".join(run("simulate", "old.json", *files).split())
    assert "the plan does not say what it was made for; simulated: a mini" in output
    assert "a minibatch of 8 samples on 2 ranks, links that take no time" in output
    output = " ".join(run("simulate", "old.json", code=2).split())
    assert "does not name its profiles: give them after the plan" in output


def test_a_cut_is_simulated_with_microbatches_of_the_size_that_it_is_for(folder):
    _, file = profiles(folder)
    arguments = ["plan", file, "--stages", 2, "--microbatches", 4, "--plot", "p.svg"]
    output = run(*arguments)
    assert "for microbatches of 8 samples on 2 ranks" in output
    assert "drawn to p.svg" in output
    assert "a minibatch of 32 samples" in run("simulate", "plan.json")
    simulated = run("simulate", "plan.json", "--microbatches", 3)
    assert "a minibatch of 24 samples" in simulated
    simulated = run("simulate", "plan.json", "--batch", 16)
    assert "a minibatch of 16 samples" in simulated


def test_everything_has_help():
    for command in ((), ("profile",), ("plan",), ("simulate",), ("timeline",)):
        output = run(*command, "--help")
        assert "Usage:" in output
    for name in ("--input", "--batch", "--plot", "--optimizer"):
        assert name in run("profile", "--help")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "profile-1.json"], 2, "either --ranks or --stages"),
        (
            ["plan", "profile-1.json", "--ranks", "2", "--stages", "2"],
            2,
            "either --ranks or --stages",
        ),
        (["plan", "profile-1.json", "--ranks", "0"], 2, "0 is not positive"),
        (["plan", "profile-1.json", "--stages", "9"], 1, "6 layers cannot be cut"),
        (
            ["plan", "profile-1.json", "--stages", "2", "--memory", "5 QB"],
            2,
            "is not a size",
        ),
        (
            ["plan", "profile-1.json", "--stages", "1", "--memory", "10kB"],
            1,
            "stage 0 (layers 0 to 5) needs",
        ),
        (["plan", "models_of_test.py", "--ranks", "2"], 2, "is not a profile"),
        (["plan", "missing.json", "--ranks", "2"], 2, "does not exist"),
        (["simulate", "profile-1.json", "profile-1.json"], 2, "is not a plan"),
        (["timeline", "profile-1.json"], 2, "profile-1.json is not a timeline"),
        (["profile", "nope.py:MLP", "--input", "3", "--batch", "1"], 1, "no file"),
        (
            ["profile", "models_of_test:MLP", "--input", "3,4", "--batch", "1"],
            2,
            "is not a shape",
        ),
        (
            [
                "profile",
                "models_of_test:MLP",
                "--input",
                "6",
                "--batch",
                "1",
                "--optimizer",
                "Best",
            ],
            1,
            "no optimizer 'Best'",
        ),
        (
            ["plan", "profile-1.json", "profile-1.json", "--ranks", "2"],
            1,
            "two of the profiles are at 1 samples",
        ),
        (
            ["plan", "profile-1.json", "--stages", "2", "--batch", "8"],
            2,
            "--batch goes with --ranks",
        ),
        (
            [
                *("plan", "profile-1.json", "profile-1.json", "--stages", "2"),
                *("--batch", "8", "--replicas", "2"),
            ],
            2,
            "--batch goes with --ranks: here it is what the profile has; --replicas"
            " goes with --ranks; there are 2 profiles: give one",
        ),
        (
            [
                *("plan", "profile-1.json", "--ranks", "2"),
                *("--exchange-dtype", "int8", "--error-feedback"),
            ],
            2,
            "--exchange-dtype and --error-feedback: only with --replicas",
        ),
        (
            ["plan", "profile-1.json", "--ranks", "2", "--exchange-dtype", "int7"],
            2,
            "'int7' is not one of 'fp32', 'fp16', 'bf16', 'e5m2', 'e4m3', 'int8'",
        ),
        (
            ["plan", "profile-1.json", "--stages", "2", "--plot", "step.png"],
            2,
            "--plot with --stages needs --microbatches",
        ),
        (
            ["plan", "profile-1.json", "--stages", "2", "--schedule", "zb_v"],
            2,
            "zb_h2, pipedream_2bw, gpipe; --ranks chooses among the other schedules",
        ),
        (
            ["plan", "profile-1.json", "--ranks", "2", "--bandwidth", "0B/s"],
            1,
            "bandwidth must be positive",
        ),
        (
            [
                *("plan", "profile-1.json", "--stages", "2"),
                *("--recompute", "always", "--recompute", "never"),
            ],
            2,
            "with --stages give one --microbatches, one --schedule and one --recompute",
        ),
        (
            [
                *("plan", "profile-1.json", "--ranks", "2"),
                *("--method", "uniform"),
            ],
            2,
            "--method goes with --stages",
        ),
        (
            ["plan", "profile-1.json", "--ranks", "2", "--bandwidth", "1Gb/s"],
            2,
            "bits or bytes? Write 1Gbit/s",
        ),
        (
            ["profile", "models_of_test:MLP", "--input", "3:floot32", "--batch", "1"],
            2,
            "'floot32' is not a dtype",
        ),
        (
            ["profile", "models_of_test:MLP", "--input", "5", "--batch", "1"],
            1,
            "models_of_test:MLP, layer 0: InvalidType",
        ),
        (
            [
                "profile",
                "models_of_test:MLP(1, 2, 3)",
                "--input",
                "5",
                "--batch",
                "1",
            ],
            1,
            "models_of_test:MLP(1, 2, 3): TypeError",
        ),
        (
            ["profile", "models_of_test:unshapely", "--input", "5", "--batch", "1"],
            1,
            "models_of_test:unshapely, layer 1: ValueError: cannot reshape",
        ),
        (
            [
                *("profile", "models_of_test:MLP", "--input", "6", "--batch", "1"),
                *("--repeat", "0"),
            ],
            2,
            "0 is not positive",
        ),
        (
            [
                "profile",
                "models_of_test:MLP",
                "--input",
                "6",
                "--batch",
                "1",
                "--device",
                "cuda:0",
            ],
            1,
            "--device cuda:0: RuntimeError",
        ),
        (
            ["profile", "models_of_test:words", "--input", "4:int32", "--batch", "2"],
            0,
            "written to",
        ),
    ],
)
def test_what_is_wrong_is_said(folder, arguments, code, message):
    profiles(folder)
    assert message in " ".join(run(*arguments, code=code).split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan profile-1.json --stages 2 --speeds 1e-300", "finite and positive, from"),
        ("plan profile-1.json --stages 2 --latency 1e300", "finite and not negative"),
        ("plan profile-1.json --ranks 2 --bandwidth 1e-300", "positive, beyond 2**-63"),
        ("plan profile-1.json --ranks x", "'x' is not a positive integer"),
        (f"plan profile-1.json --ranks {'9' * 5000}", "of at most 18 digits"),
        (f"plan profile-1.json --ranks {'9' * 18}", "Unable to allocate"),
        (
            "profile models_of_test.py:MLP --input 6 --batch 99999999999999999",
            "allocate",
        ),
        (
            "profile models_of_test.py:MLP --input 9999999999x9999999999 --batch 9",
            "too big",
        ),
        ("simulate plan.json profile-1.json --microbatches 999999999999", "fit into"),
        ("simulate plan.json profile-1.json --microbatches 99", "cut into"),
        ("plan /proc/self/mem --stages 2", "error: '/proc/self/mem'"),
        ("plan . --stages 2", "File '.' is a directory"),
        ("timeline empty.json", "empty.json is not a timeline saved by"),
        ("plan profile-1.json --stages 2 -o none/plan.json", "none/plan.json"),
    ],
)
def test_nonsense_is_said_in_a_line(folder, arguments, message):
    profiles(folder)
    Plan([0, 3, 6], 2, "1f1b").save("plan.json")
    (folder / "empty.json").write_text("")
    result = CliRunner().invoke(main, arguments.split())
    assert isinstance(result.exception, SystemExit), result.exception
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ") and message in last


def test_the_newest_timeline_of_a_folder(folder):
    (folder / "out").mkdir()
    for number, name in enumerate(["first", "second"], 1):
        timeline = simulate(one_f_one_b(2, number), Costs(1, 1, 1))
        timeline.save(folder / "out" / f"{name}.json")
        os.utime(folder / "out" / f"{name}.json", (number, number))
    Plan([0, 3, 6], 2, "1f1b").save(folder / "out" / "plan.json")
    lines = run("timeline", "out").splitlines()
    assert lines[0] == "out/second.json"
    assert lines[1].startswith("1f1b: 9 s")


@pytest.mark.parametrize(
    "command, file",
    [
        ("plan profile-1.json --stages 2 -o full.json", "full.json"),
        ("simulate plan.json profile-1.json --batch 4 -o full.json", "full.json"),
        ("simulate plan.json profile-1.json --batch 4 --plot full.png", "full.png"),
    ],
)
def test_a_full_disk_is_said_in_a_line(folder, command, file):
    profiles(folder)
    Plan([0, 3, 6], 2, "1f1b").save("plan.json")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        result = CliRunner().invoke(main, command.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(result.exception, SystemExit), result.exception
    last = result.output.splitlines()[-1]
    assert re.fullmatch(rf"Error: {file}: .*; [0-9,]+ bytes are free there", last)
    assert not (folder / file).exists()


@given(data=st.data())
@examples(
    25,
    # Commands run between two draws, which a busy machine takes long for.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_file_ends_in_a_traceback(folder, data):
    profiles(folder)
    machine = Machine(2, [1e9, 1e9], Network([1e6], 0.1), [1, 2.0], Disk(1e9, 1e9))
    made_for = Conditions(machine, 4, profiles=["profile-1.json"])
    Plan([0, 3, 6], 2, "1f1b", conditions=made_for).save("plan.json")
    simulate(one_f_one_b(2, 2), Costs(1, 1, 1)).save("t.json")
    file, command = data.draw(
        st.sampled_from(
            [
                ("plan.json", "simulate bad.json profile-1.json"),
                ("plan.json", "simulate bad.json"),
                ("profile-1.json", "simulate plan.json bad.json --batch 4"),
                ("profile-1.json", "plan bad.json --stages 2 -o other.json"),
                ("profile-8.json", "plan bad.json --ranks 2 --batch 8 -o other.json"),
                ("t.json", "timeline bad.json"),
                ("t.json", "explore bad.json -o page.html"),
            ]
        )
    )
    content = json.loads((folder / file).read_text())
    (folder / "bad.json").write_bytes(data.draw(broken(content)))
    result = CliRunner().invoke(main, command.split())
    if result.exception is not None:
        assert isinstance(result.exception, SystemExit), result.exception
        assert "Error: " in result.output.splitlines()[-1]


def test_the_loss_may_be_to_blame(folder, monkeypatch):
    def failing(*_, **__):
        raise ValueError("no such shape")

    monkeypatch.setattr("pipeline.command_line.profile.profile", failing)
    arguments = ["profile", "models_of_test:MLP", "--input", "6", "--batch", "1"]
    output = " ".join(run(*arguments, code=1).split())
    assert "MLP: ValueError: no such shape. If it is the loss" in output
    assert "Error: no such shape" in run(*arguments, "--no-loss", code=1)


def test_models_by_name(folder):
    assert len(make_model("models_of_test:MLP")) == 4
    assert len(make_model("models_of_test:MLP(5, n_layers=1)")) == 2
    assert len(make_model("models_of_test.py:words(3)")) == 2
    assert len(make_model("models_of_test:ready")) == 1


def test_a_file_with_the_name_of_a_package(folder):
    text = (folder / "models_of_test.py").read_text()
    (folder / "pipeline.py").write_text(text)
    before = sys.modules["pipeline"]
    for _ in range(2):
        assert len(make_model("pipeline.py:MLP")) == 4
    assert sys.modules["pipeline"] is before


def test_integer_inputs(folder):
    run(
        *("profile", "models_of_test:words", "--input", "5:int32", "--batch", "2"),
        *("--no-loss", "--repeat", "1", "-o", "words.json"),
    )
    assert Profile.load("words.json").loss is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MLP", "names no model"),
        ("models_of_test:", "names no model"),
        ("no_such_module:MLP", "there is no module 'no_such_module'"),
        ("models_of_test:CNN", "there is no 'CNN' in models_of_test"),
        ("models_of_test:MLP(open('f'))", "is not NAME or NAME"),
        ("models_of_test:MLP + 1", "is not NAME or NAME"),
        ("models_of_test:number", "is a int: neither a model"),
        ("models_of_test:nothing", "makes a int, not a Divisible"),
        ("models_of_test:ready(1)", "is a model already"),
    ],
)
def test_names_that_are_no_models(folder, text, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make_model(text)


OTHER_MODELS = """
import chainer
from chainer import links as L

# PyTorch need not be installed.
Module = type("Module", (), {"__module__": "torch.nn.modules.module"})
net = type("Net", (Module,), {"__call__": lambda self, x: x})()
chain = chainer.Chain()


def make_net():
    return net


def make_chain():
    return chain
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net", "is a Net, .* returns from_torch"),
        ("make_net", "makes a Net, .* returns from_torch"),
        ("chain", "is a Chain, .* or from_chain"),
        ("make_chain", "makes a Chain, .* or from_chain"),
    ],
)
def test_networks_that_are_no_lists_are_refused_with_the_way_out(folder, name, message):
    (folder / "others_of_test.py").write_text(OTHER_MODELS)
    with pytest.raises(ValueError, match=message):
        make_model(f"others_of_test.py:{name}")


def test_a_script_that_ends_where_it_is_imported(folder):
    (folder / "script_of_test.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(ValueError, match='exit code 2: .* if __name__ == "__main__"'):
        make_model("script_of_test.py:MLP")


def test_a_missing_import_is_not_a_missing_module(folder):
    (folder / "broken_for_test.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        make_model("broken_for_test:MLP")


def test_a_cut_for_microbatches_of_the_profiles_size(folder):
    """The picture is of as many samples as the cut is for."""
    profiles(folder)
    arguments = ["plan", "profile-1.json", "--stages", "2", "--microbatches", "32"]
    assert "drawn to" in run(*arguments, "--plot", "p.svg")


@pytest.mark.parametrize("name", ["n_microbatches", "stages_per_rank", "replicas"])
@pytest.mark.parametrize("value", [0, "8", 1.5])
def test_numbers_of_a_plan(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer"):
        Plan([0, 2], **{name: value})
