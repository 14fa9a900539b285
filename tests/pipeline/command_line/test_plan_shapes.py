import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from divisible import Disk, LayerCost, Machine, Network, Plan, Profile
from divisible.schedules import zero_bubble_h1
from pipeline.command_line.main import main

MODELS = """
import chainer.functions as F
import chainer.links as L
from divisible import Divisible


class MLP(Divisible):
    def __init__(self, width=60, n_layers=3):
        for _ in range(n_layers - 1):
            self.append(L.Linear(width, width))
            self.append(F.relu)
        self.append(L.Linear(width, 10))


class Words(Divisible):
    def __init__(self, n=50):
        self.append(L.EmbedID(n, 4))
        self.append(L.Linear(None, 3))


def unshapely():
    return Divisible(F.relu, lambda x: x[: int(x.array[0, 0])])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "models_by_shape.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models_by_shape", raising=False)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


def shapes(model, *arguments, code=0):
    return run("plan", "--shapes", f"models_by_shape.py:{model}", *arguments, code=code)


def test_shows_layers_and_ranks_of_a_model_that_fits_on_no_host(folder):
    output = shapes(
        *("MLP(1000000, n_layers=5)", "--input", "1000000", "--batch", 64),
        *("--optimizer", "Adam", "--stages", 5, "--microbatches", "4,16"),
        *("--schedule", "1f1b", "--schedule", "zb_h1", "--recompute", "never"),
        *("--recompute", "always"),
    )
    assert "microbatches of 16 samples" in output
    assert "microbatches of 4 samples" in output
    # 10 ** 12 float32 and as many gradients, and twice that for Adam's state.
    assert re.search(r"0 +Linear\(.*\(16, 1000000\) float32 +3.6 TiB +3.6 TiB", output)
    assert output.count("cut where the fullest stage holds least: [0, ") == 8
    assert "zb_h1, recompute always, 5 stages, 16 microbatches" in output
    assert "loss  softmax_cross_entropy" in output
    assert not (folder / "plan.json").exists()


def test_integers_are_inputs_and_labels_follow_the_output():
    output = shapes("Words", "--input", "7:int32", "--batch", 8)
    assert "(8, 7, 4) float32" in output
    assert "(8, 3) float32" in output


def test_says_which_rank_lacks_how_much():
    wanted = ("--input", 60, "--batch", 8, "--stages", 2, "--microbatches", 2)
    assert "needs" not in shapes("MLP", *wanted, "--memory", "1MB")
    output = shapes("MLP", *wanted, "--memory", "1MB,20kB", code=1)
    assert re.search(r"rank 1 needs 3\d\.\d KiB, and has 19.5 KiB", output)
    assert "Give more --stages" in output


def test_takes_the_schedule_of_a_file(folder):
    own = str(zero_bubble_h1(2, 4))
    (folder / "mine.txt").write_text(own.replace("zb_h1", "mine"))
    wanted = ("--input", 60, "--batch", 8, "--schedule", "mine.txt")
    # Its number of microbatches is the default.
    output = shapes("MLP", *wanted, "--schedule", "1f1b", "--stages", 2)
    assert "microbatches of 2 samples" in output
    for name in ("mine", "1f1b"):
        assert f"{name}, 2 stages, 4 microbatches, cut where" in output
    output = shapes("MLP", *wanted, "--stages", 3, code=1)
    assert "mine has 2 stages and 4 microbatches, not 3 and 4" in output
    # It is refused before the model is made.
    assert "output" not in output


def test_ranks_have_the_memory_of_a_machine():
    Machine(2, memory=[2**30, 10**4], speeds=[1, 0.5]).save("machine.json")
    wanted = ("--input", 60, "--batch", 8, "--machine", "machine.json")
    assert "sum" in shapes("MLP", *wanted)
    output = shapes("MLP", *wanted, "--stages", 2, code=1)
    assert re.search(r"rank 1 needs 3\d\.\d KiB, and has 9.8 KiB", output)
    # Four stages of which two lie on each rank.
    output = shapes("MLP", *wanted, "--stages", 4, "--schedule", "zb_v", code=1)
    assert "rank 1 needs" in output
    output = shapes("MLP", *wanted, "--stages", 3, code=1)
    assert "memory has 2 numbers, but there are 3 ranks" in output
    assert "needs" not in shapes("MLP", *wanted, "--stages", 2, "--memory", "1GB")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--batch", "8"], 2, "needs --input"),
        (["--input", "60"], 2, "--batch"),
        (["--input", "60", "--batch", "8", "--ranks", "2"], 2, "goes with --stages"),
        (["--input", "60", "--batch", "8", "--schedule", "1f1b"], 2, "need --stages"),
        (
            ["--input", "60", "--batch", "8", "--stages", "2", "--recompute", "layers"],
            2,
            "needs a profile",
        ),
        (["--input", "61", "--batch", "8"], 1, "unknown from layer 0 on"),
        (
            [
                "--speeds",
                "1,2",
                "--replicas",
                "2",
                "--latency",
                "1s",
                "--plot",
                "a.png",
            ],
            2,
            "not with --shapes: --speeds, --bandwidth, --latency, --overlap, --repl",
        ),
        (["--input", "60", "--batch", "8", "--stages", "9"], 1, "5 layers, fewer than"),
        (["--input", "60", "--batch", "8", "--optimizer", "Eve"], 1, "no optimizer"),
        (
            ["--input", "60", "--batch", "4", "--stages", "2", "--microbatches", "8"],
            1,
            "more than 4 samples",
        ),
    ],
)
def test_refuses_what_it_cannot_show(arguments, code, message):
    assert message in shapes("MLP", *arguments, code=code)


def test_names_the_layer_with_unknown_shapes():
    output = shapes("unshapely", "--input", 6, "--batch", 8, code=1)
    assert "unknown from layer 1 on" in output
    assert "reads the numbers" in output


def test_options_of_shapes_need_them():
    profile_of(1.0).save("profile.json")
    output = run("plan", "profile.json", "--stages", 2, "--input", 6, code=2)
    assert "--input: only with --shapes" in output
    assert "give a PROFILE" in run("plan", "--stages", 2, code=2)


def profile_of(seconds):
    layers = [
        LayerCost(seconds, seconds, seconds, output_bytes=1000, activation_bytes=5000)
        for _ in range(6)
    ]
    return Profile(layers, 8, input_bytes=1000)


def test_a_plan_takes_the_machine_of_a_file():
    profile_of(0.1).save("profile.json")
    machine = Machine(
        3,
        memory=[10**9, 2 * 10**9, 10**9],
        network=Network([1e8, 1e6], [1e-4, 1e-3]),
        speeds=[1, 1, 0.25],
        disk=Disk(1e9, 5e8),
    )
    machine.save("machine.json", about=[{"host": "a"}])
    run("plan", "profile.json", "--machine", "machine.json")
    assert Plan.load("plan.json").conditions.machine == machine
    # Options win, and fewer ranks than the file has are a part of it.
    run(
        *("plan", "profile.json", "--machine", "machine.json", "--ranks", 2),
        *("--memory", "3GB", "--latency", "1ms"),
    )
    found = Plan.load("plan.json").conditions.machine
    assert found.ranks == 2
    assert found.memory == 3e9
    assert np.all(found.network.latency == 1e-3)
    assert found.links().bandwidth.tolist() == [1e8]
    assert found.speeds == (1, 1)
    # The slow rank gets fewer layers of a plan that only cuts.
    run("plan", "profile.json", "--machine", "machine.json", "--stages", 3)
    cuts = Plan.load("plan.json").cuts
    assert cuts[3] - cuts[2] < cuts[1] - cuts[0]


def test_a_file_without_enough_ranks_or_of_another_kind_is_refused():
    profile_of(0.1).save("profile.json")
    Machine(2).save("machine.json")
    arguments = ("plan", "profile.json", "--machine")
    assert "2 ranks, fewer than 3" in run(
        *arguments, "machine.json", "--ranks", 3, code=2
    )
    assert "fewer than 4" in run(*arguments, "machine.json", "--stages", 4, code=2)
    assert "not a machine" in run(*arguments, "profile.json", "--ranks", 2, code=2)
