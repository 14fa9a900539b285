"""Training in several ways, and what is written of it."""

import pytest

from benchmarks.common.results import Result
from benchmarks.data_parallel.exchange import Goals
from benchmarks.data_parallel.networks import NETWORKS
from benchmarks.data_parallel.training import (
    ALONE,
    CHAINERMN,
    DEEP,
    TEST_EVERY,
    WAYS,
    WIDE,
    goals_of,
    seconds_to,
    write_steps,
)

SECONDS = {ALONE: 1.0, CHAINERMN: 10.0, "fp32": 8.0, "e4m3": 4.0}


def found(n=3):
    parts = {"encode": 0.25, "wire": 1.0, "sum": 0.25, "decode": 0.5}
    return {
        name: (
            [SECONDS.get(name, 2.0)] * n,
            {} if name in (ALONE, CHAINERMN) else parts,
            [],
        )
        for name in WAYS
    }


def test_goals_say_what_was_missed():
    goals = Goals()
    goals_of(goals, WIDE, found())
    goals_of(goals, DEEP, found())
    assert goals.lines == [
        "AlexNet-like: fp32 over ChainerMN: 1.25, wanted 0.97: met",
        "AlexNet-like: part of fp32's step that is exchange: 0.88, wanted 0.8: met",
        "AlexNet-like: int8 over fp32: 4.00, wanted 2.2: met",
        "AlexNet-like: int8, late over fp32, late: 1.00, wanted 2.2: MISSED",
        "AlexNet-like: e4m3 over fp32: 2.00, wanted 2.2: MISSED",
        "AlexNet-like: e4m3, late over fp32, late: 1.00, wanted 2.2: MISSED",
        "convolutions: fp32 over ChainerMN: 1.25, wanted 0.97: met",
    ]


def test_each_way_has_a_line(tmp_path):
    file = tmp_path / "result.txt"
    result = Result("data_parallel_training", file)
    write_steps(result, {"ways": found(), "quantile": 0.001})
    result.save()
    _, *lines, last = file.read_text().splitlines()
    assert len(lines) == len(WAYS) and "1.00 ms" in last
    words = next(line for line in lines if line.startswith("int8 ")).split()
    # A step of 2 s is exchange alone.
    assert words[:3] == ["int8", "0.50", "4.00"]
    assert words[-6:] == ["2000.0", "0.0", "250.0", "1000.0", "250.0", "500.0"]


def test_an_accuracy_takes_all_steps_up_to_it():
    seconds = [1.0] * (3 * TEST_EVERY)
    assert seconds_to(90, seconds, [80.0, 91.0, 95.0]) == 2 * TEST_EVERY
    assert seconds_to(96, seconds, [80.0, 91.0, 95.0]) is None


@pytest.mark.parametrize("name", [WIDE, DEEP])
def test_networks_differ_in_where_their_parameters_are(name):
    model = NETWORKS[name].make()
    sizes = {n: p.size for n, p in model.namedparams() if p.array is not None}
    of_linear = sum(
        param.size
        for link in model.links()
        if type(link).__name__ == "Linear"
        for param in link.params()
    )
    share = of_linear / sum(sizes.values())
    assert share > 0.99 if name == WIDE else share < 0.2
