"""The paper's ways on real ranks, of tiny sizes."""

import dataclasses
import itertools
import json

import pytest

from benchmarks.paper_tables.on_ranks import (
    WAYS,
    in_rounds,
    machine_of,
    parse,
    points_of,
    speedups,
)
from benchmarks.paper_tables.points import FIG4, SERIAL
from benchmarks.paper_tables.samples import Sample, append, read
from tests.support.mpiexec import assert_on_ranks, mpiexec

COMMAND = ["-m", "benchmarks.paper_tables.on_ranks", "--quick"]
TINY = {
    "perceptron": ["--width", 8, "--batch", 6, "--kernels", "off", "on"],
    "vgg16": ["--image", 32, "--batch", 2, "--kernels", "on"],
    "resnet50": ["--image", 32, "--batch", 2, "--kernels", "on"],
}


@pytest.mark.parametrize(
    "model",
    [
        "perceptron",
        pytest.param("vgg16", marks=pytest.mark.matrix),
        pytest.param("resnet50", marks=pytest.mark.matrix),
    ],
)
def test_every_way_is_measured_and_compared(model, tmp_path):
    file = tmp_path / "folder" / "samples.jsonl"
    options = ["--model", model, *TINY[model], "--microbatches", 2, "--output", file]
    rounds = 2 if model == "perceptron" else 1
    argv = [*COMMAND, *options, "--rounds", rounds]
    done = mpiexec(2, argv, timeout=180, has_project=True)
    assert done.returncode == 0, done.stdout
    found = read(file)
    ways = {(SERIAL, "equal layers")} | {(schedule, cut) for cut, schedule in WAYS}
    assert {(point.schedule, point.cut) for point in found} == ways
    n_kernels = TINY[model].count("off") + TINY[model].count("on")
    assert len(found) == n_kernels * len(ways)
    for point, samples in found.items():
        sample = samples[0]
        assert (point.hosts, point.rate, point.update) == (2, "real", True)
        assert sample.seconds > 0
        assert [each.round for each in samples] == list(range(rounds))
        # All rounds are cut alike.
        assert all(each.cuts == sample.cuts for each in samples)
        assert sample.machine.startswith("2 ranks on 1 host: ")
        assert sample.cuts[0] == 0 and len(sample.cuts) <= 3
    fields = {field.name for field in dataclasses.fields(Sample)}
    assert set(json.loads(file.read_text().splitlines()[0])) == fields
    # A line for each way, with its speed-up.
    table = done.stdout[done.stdout.index("kernels  m") :].splitlines()[1:]
    assert len(table) == n_kernels * len(WAYS)
    assert all(float(line.split()[-1]) > 0 for line in table)


def test_what_was_measured_is_not_measured_again(tmp_path):
    file = tmp_path / "samples.jsonl"
    options = ["--model", "perceptron", "--width", "8", "--batch", "6"]
    options += ["--microbatches", "2", "--rounds", "1", "--output", str(file)]
    for point in points_of(parse(options), 1):
        append(file, sample(point))
    before = file.read_text()
    done = mpiexec(1, [*COMMAND, *options], has_project=True)
    assert done.returncode == 0, done.stdout
    assert "0 of 5 samples to measure" in done.stdout
    assert file.read_text() == before


def test_kernels_off_and_on_take_turns(tmp_path):
    points = points_of(parse(["--kernels", "off", "on", "--microbatches", "4"]), 2)
    todo = in_rounds({points[0]: [sample(points[0])]}, points, 2)
    turns = [
        (kernels, number, len(list(entries)))
        for (kernels, number), entries in itertools.groupby(
            todo, lambda entry: (entry[0].kernels, entry[1])
        )
    ]
    # The first point has a sample of the first round.
    assert turns == [("off", 0, 4), ("on", 0, 5), ("off", 1, 5), ("on", 1, 5)]


def test_a_quick_run_is_short_and_has_a_file_of_its_own():
    quick, whole = parse(["--quick"]), parse([])
    assert (quick.microbatches, quick.rounds) == ([20], 1)
    assert (whole.microbatches, whole.rounds) == ([4, 12, 20], 3)
    assert quick.output != whole.output
    assert quick.output.suffix == whole.output.suffix == ".jsonl"


def sample(point, seconds=1.0):
    return Sample(point, 0, seconds, [0, 63], machine="here", load=0.0, date="today")


def test_speed_ups_are_over_the_undivided_model_of_the_same_kernels(tmp_path):
    options = ["--kernels", "off", "on", "--microbatches", "20"]
    points = points_of(parse(options), 4)
    file = tmp_path / "samples.jsonl"
    for point in points:
        alone = 6.0 if point.kernels == "off" else 3.0
        append(file, sample(point, alone if point.schedule == SERIAL else 2.0))
    header, *lines = speedups(file, points)
    assert header.split()[-1] == "speed-up"
    assert [line.split()[-1] for line in lines] == ["3.00"] * 4 + ["1.50"] * 4
    # Of 84 samples, the paper's loop makes microbatches of 5.
    assert [line.split()[1] for line in lines] == ["17", "20", "20", "20"] * 2


def test_a_gpu_has_no_loop_of_arrays_in_host_memory():
    points = points_of(parse(["--device", "@cupy:0"]), 2)
    assert FIG4 not in {point.schedule for point in points}
    assert FIG4 in {point.schedule for point in points_of(parse([]), 2)}


@pytest.mark.parametrize("options", [["0"], ["4", "85"], ["-1", "2"]])
def test_a_microbatch_has_a_sample(options, capsys):
    with pytest.raises(SystemExit):
        parse(["--microbatches", *options])
    assert "must be from 1 to the 84 samples" in capsys.readouterr().err


def names_its_machine(comm):
    text, load = machine_of(comm)
    assert text.startswith("2 ranks on 1 host: ") and text.count("Python") == 1
    assert load >= 0
    assert comm.allgather((text, load)) == [(text, load)] * 2


def test_ranks_of_one_host_are_one_machine():
    assert_on_ranks(2, names_its_machine)
