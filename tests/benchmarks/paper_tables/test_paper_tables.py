"""What the tables of the paper are made of; the hosts themselves are not started."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("divisible.planning.profile", reason="needs the planner")


def sample(point, **values):
    from benchmarks.paper_tables.samples import Sample

    one = [[1.0] * point.microbatches] * point.hosts
    fields = {
        "round": 0,
        "seconds": 3.0,
        "cuts": list(range(0, 5, 4 // point.hosts)),
        "forward": one,
        "backward_input": one,
        "backward_weight": one,
        "machine": "a machine",
        "load": 0.5,
        "date": "today",
    }
    return Sample(point, **{**fields, **values})


def test_the_papers_points_are_among_those_measured():
    from benchmarks.paper_tables.points import FIGURE_7, FIGURE_13, FIT, Scale, figures

    found = figures(Scale())
    assert sorted(found) == [6, 8, 9, 10, 11, 13, 14]
    measured = {(point.hosts, point.microbatches) for point in found[6]}
    assert {(hosts, m) for hosts, (m, _) in FIGURE_7.items()} <= measured
    assert {(16, m) for m in FIT} <= measured
    assert {(8, 20)} <= {(p.hosts, p.microbatches) for p in found[13]}
    assert {(hosts, m) for hosts, (m, _) in FIGURE_13.items()} <= {
        (p.hosts, p.microbatches) for p in found[13]
    }
    assert {point.cut for point in found[14]} == {"equal layers", "ours"}


def test_series_are_measured_beyond_their_ends():
    from benchmarks.paper_tables.points import OURS, Point, beyond

    whole = [Point("mlp", 64, 40, 2, m) for m in (1, 4, 12)]
    ours = [Point("vgg16", 32, 40, 8, m, cut=OURS) for m in (3, 7, 30)]
    assert beyond([*ours, *whole]) == [
        dataclasses.replace(ours[0], microbatches=2),
        # There are no more samples.
        dataclasses.replace(ours[0], microbatches=40),
        dataclasses.replace(whole[0], microbatches=24),
    ]


@pytest.mark.parametrize("n_hosts", [1, 2, 3, 8, 32])
def test_the_papers_cut_has_equally_many_layers(n_hosts):
    from benchmarks.paper_tables.models import build, cuts
    from benchmarks.paper_tables.points import Point

    point = Point("mlp", 8, 10, n_hosts, 1)
    hosts = point.on(1.6)
    found = cuts(point, [], hosts)
    assert found[0] == 0 and found[-1] == len(build(point)) == 63
    linear = [(b - a + 1) // 2 for a, b in zip(found, found[1:])]
    assert sum(linear) == 32 and max(linear) - min(linear) <= 1
    assert cuts(Point("vgg16", 32, 8, n_hosts, 1), [], hosts)[-1] == 38


@pytest.mark.parametrize(
    "seconds, stages", [([1, 1, 1, 1], 4), ([1, 1, 12, 1], 3), ([1, 1, 1, 30], 2)]
)
def test_our_cut_has_only_stages_that_make_it_faster(seconds, stages):
    from benchmarks.paper_tables.models import cuts
    from benchmarks.paper_tables.points import OURS, Point
    from divisible import LayerCost, Profile

    profiles = [
        Profile([LayerCost(s * n, s * n, s * n, output_bytes=n) for s in seconds], n)
        for n in (1, 10)
    ]
    point = Point("vgg16", 32, 40, 4, 10, cut=OURS)
    found = cuts(point, profiles, point.on(1.6))
    assert len(found) == stages + 1 and found[0] == 0 and found[-1] == 4


def test_a_burst_of_noise_is_not_in_a_profile():
    from benchmarks.paper_tables.profiles import medians
    from divisible import LayerCost, Profile

    def measured(*seconds):
        costs = [LayerCost(s, 2 * s, 3 * s, output_bytes=8) for s in seconds]
        return Profile(costs[:-1], 10, loss=costs[-1])

    quiet = measured(1.0, 2.0, 0.5)
    assert medians([quiet, measured(9.0, 2.0, 0.5), measured(1.0, 7.0, 4.0)]) == quiet


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    from benchmarks.paper_tables.cli import missing_rounds
    from benchmarks.paper_tables.points import Point, with_serial
    from benchmarks.paper_tables.samples import append, read

    points = with_serial(Point("mlp", 64, 40, 2, m) for m in (1, 4, 4))
    assert [p.schedule for p in points] == ["serial", "1f1b", "1f1b"]
    file = tmp_path / "samples.jsonl"
    assert len(missing_rounds(file, points, 2)) == 6
    append(file, sample(points[0]))
    append(file, sample(points[2], round=1))
    # Stopped in the middle of a line.
    file.write_text(file.read_text() + '{"point": {"mod')
    assert missing_rounds(file, points, 2) == [
        (points[1], 0),
        (points[2], 0),
        (points[0], 1),
        (points[1], 1),
    ]
    append(file, sample(points[1]))
    assert [len(found) for found in read(file).values()] == [1, 1, 1]
    assert json.loads(file.read_text().splitlines()[0])["seconds"] == 3.0


def profiles_of(seconds, sizes=(1, 40)):
    """Returns profiles of layers whose phases take so long for a sample each."""
    from divisible import LayerCost, Profile

    return [
        Profile([LayerCost(n * each, n * each, n * each) for each in seconds], n)
        for n in sizes
    ]


def measured(point, cuts, seconds, slow, latency=0.0):
    """Makes a sample of hosts that are slower than the profiles, each by so much."""
    layers = point.batch / point.microbatches * np.array(seconds)
    stages = np.add.reduceat(layers, cuts[:-1]) * slow
    phases = np.repeat(stages[:, np.newaxis], point.microbatches, axis=1).tolist()
    # A backward that is not split counts as input gradients.
    split = point.schedule.startswith("zb")
    twice = (2 * np.array(phases)).tolist()
    return sample(
        point,
        cuts=cuts,
        forward=phases,
        backward_input=phases if split else twice,
        backward_weight=phases if split else np.zeros_like(phases).tolist(),
        latency=latency,
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("m", [1, 4, 40])
def test_a_step_is_simulated_by_others_of_the_same_hosts(schedule, m):
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.simulations import replay, simulate

    seconds, slow, cuts = (3.0, 1.0, 2.0, 1.0), [5.0, 7.0, 4.0], [0, 1, 3, 4]

    def step(m, slow):
        point = Point("mlp", 64, 40, 3, m, schedule=schedule)
        return measured(point, cuts, seconds, slow, latency=2.5)

    profiles, hosts = profiles_of(seconds), step(m, slow).point.on(1.6)
    others = {n: step(n, slow) for n in (2, 8, 20)}
    # A disturbed step does not count for itself.
    others[m] = step(m, [99.0] * 3)
    found = simulate(others[m].point, cuts, others, profiles, hosts)
    assert found == pytest.approx(replay(step(m, slow), profiles, hosts))


@pytest.mark.parametrize(
    "m, slow, latency",
    [
        (1, [2.0, 6.0], 10.0),
        # In the middle of 2 and 8.
        (4, [3.0, 5.0], 20.0),
        (10, [4.0, 4.0], 30.0),
        (40, [4.0, 4.0], 30.0),
    ],
)
def test_the_next_fewer_and_more_microbatches_count(m, slow, latency):
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.simulations import replay, simulate

    seconds, cuts = (3.0, 1.0), [0, 1, 2]

    def step(m, slow, latency):
        point = Point("mlp", 64, 40, 2, m)
        return measured(point, cuts, seconds, slow, latency)

    others = {2: step(2, [2.0, 6.0], 10.0), 8: step(8, [4.0, 4.0], 30.0)}
    if 2 < m < 8:
        # What is further away does not.
        others |= {1: step(1, [90.0, 80.0], 70.0), 20: step(20, [60.0, 50.0], 90.0)}
    expected, profiles = step(m, slow, latency), profiles_of(seconds)
    hosts = expected.point.on(1.6)
    found = simulate(expected.point, cuts, others, profiles, hosts)
    assert found == pytest.approx(replay(expected, profiles, hosts))


@pytest.mark.parametrize(
    "cuts, slow",
    [
        # In the other step each layer is a stage.
        ([0, 1, 2, 3], [2.0, 3.0, 5.0]),
        # 1 and 2 of 3 seconds are 2 and 3 times as slow.
        ([0, 2, 3], [(2 * 1 + 3 * 2) / 3, 5.0]),
        ([0, 1, 3], [2.0, (3 * 2 + 5 * 4) / 6]),
    ],
)
def test_layers_are_as_slow_as_their_stages_in_another_cut(cuts, slow):
    from benchmarks.paper_tables.points import OURS, Point
    from benchmarks.paper_tables.simulations import replay, simulate

    seconds = (1.0, 2.0, 4.0)
    points = {m: Point("vgg16", 32, 40, 3, m, cut=OURS) for m in (4, 8)}
    others = {8: measured(points[8], [0, 1, 2, 3], seconds, [2.0, 3.0, 5.0])}
    expected = measured(points[4], cuts, seconds, slow)
    profiles, hosts = profiles_of(seconds), points[4].on(1.6)
    found = simulate(points[4], cuts, others, profiles, hosts)
    assert found == pytest.approx(replay(expected, profiles, hosts))


def test_older_samples_have_the_means_of_the_stages():
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.simulations import (
        layer_slowness,
        simulate,
        stage_seconds,
    )

    point, cuts, seconds = Point("mlp", 64, 40, 2, 4), [0, 2, 3], (2.0, 1.0, 1.0)
    new = measured(point, cuts, seconds, [2.0, 5.0])
    phases = ("forward", "backward_input", "backward_weight")
    means = {name: np.mean(getattr(new, name), axis=1).tolist() for name in phases}
    old = dataclasses.replace(new, **means)
    assert stage_seconds(old) == pytest.approx(stage_seconds(new))
    profiles, hosts = profiles_of(seconds), point.on(1.6)
    assert layer_slowness(old, profiles) == pytest.approx([2.0, 2.0, 5.0])
    more = dataclasses.replace(point, microbatches=8)
    by_old, by_new = (
        simulate(more, cuts, {4: step}, profiles, hosts) for step in (old, new)
    )
    assert by_old == pytest.approx(by_new)


@pytest.mark.parametrize("cuts", [[0, 1, 2], [0, 2]])
def test_phases_vary_as_at_the_same_part_of_the_other_steps(cuts):
    from benchmarks.paper_tables.points import OURS, Point
    from benchmarks.paper_tables.simulations import replay, simulate

    def step(m, cuts, patterns):
        """Each stage is slower in some parts of the step."""
        point = Point("vgg16", 32, 48, 2, m, cut=OURS)
        even = measured(point, cuts, (1.0, 1.0), [1.0] * (len(cuts) - 1))
        each = np.repeat(patterns, m // 4, axis=1)
        names = ("forward", "backward_input", "backward_weight")
        phases = {name: (getattr(even, name) * each).tolist() for name in names}
        return dataclasses.replace(even, **phases)

    in_turn = np.array([[0.5, 1.5, 0.5, 1.5], [1.5, 0.5, 1.5, 0.5]])
    others = {m: step(m, [0, 1, 2], in_turn) for m in (4, 16)}
    # One stage of both is as slow throughout.
    expected = step(8, cuts, in_turn if len(cuts) == 3 else np.ones((1, 4)))
    profiles, hosts = profiles_of((1.0, 1.0)), expected.point.on(1.6)
    found = simulate(expected.point, cuts, others, profiles, hosts)
    assert found == pytest.approx(replay(expected, profiles, hosts))


@pytest.mark.parametrize(
    "found, chosen",
    [
        ([1, 3, 5, 12, 40, 80], [3, 12, 40]),
        ([1, 2, 4, 20], [2, 4, 20]),
        ([1, 2], [1, 2]),
    ],
)
def test_equation_3_is_fitted_as_in_figure_12(found, chosen):
    from benchmarks.paper_tables.rows import fit_points

    assert fit_points(found) == chosen


def test_equation_3_is_fitted_to_each_round():
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.rows import by_equation, in_round
    from divisible.schedules.paper_model import PerformanceModel

    models = [PerformanceModel(4, a, 2.0, 3.0) for a in (40.0, 80.0)]

    def steps(m):
        point = Point("mlp", 64, 40, 4, m)
        return [sample(point, round=r, seconds=f(m)) for r, f in enumerate(models)]

    # With 40 there was one round only.
    series = {3: steps(3), 12: steps(12), 40: steps(40)[:1]}
    rounds = [in_round(series, number) for number in (0, 1)]
    point = Point("mlp", 64, 40, 4, 5)
    first, second = by_equation(point, rounds)
    assert first == pytest.approx(models[0](5))
    assert first < second
    assert by_equation(dataclasses.replace(point, hosts=1), rounds) == []
    assert by_equation(point, [{3: rounds[0][3]}]) == []


def test_layers_share_the_seconds_of_their_stage():
    from benchmarks.paper_tables.rows import seconds_in_step

    found = seconds_in_step([10.0, 2.0, 4.0], [0, 1, 3], [9.0, 18.0])
    assert found.tolist() == [9.0, 6.0, 12.0]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("burst", [0.0, 0.05, 0.15])
def test_phases_and_messages_of_a_timeline_make_up_its_step(name, burst):
    import numpy as np

    from benchmarks.common.perceptron import phase_seconds
    from divisible import schedules, simulate
    from divisible.schedules import Costs

    random = np.random.RandomState(0)
    schedule = schedules.create(name, 4, 6)
    durations = random.gamma(1.0, 1.0, (3, 4, 6))
    transfer, latency = [0.1, 0.2, 0.0], 0.3
    costs = Costs(*durations, transfer=transfer, latency=latency)
    timeline = simulate(schedule, costs)
    # Links may let a part of each message pass at once.
    found = phase_seconds(timeline, [seconds + burst for seconds in transfer])
    assert found.latency == pytest.approx(latency - burst)
    assert np.array(found.forward) == pytest.approx(durations[0])
    whole = durations[1] if name == "zb_h1" else durations[1] + durations[2]
    assert np.array(found.backward_input) == pytest.approx(whole)
    again = Costs(*found[:3], transfer=transfer, latency=latency)
    again = simulate(schedule, again).makespan
    assert again == pytest.approx(timeline.makespan)


def test_where_bursts_pass_at_once_messages_take_less_than_by_the_rate():
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.simulations import replay, simulate
    from divisible import LayerCost, Profile

    profiles = [
        Profile([LayerCost(n, n, n, output_bytes=n * 10**6)] * 2, n) for n in (1, 40)
    ]

    def step(m, latency, rate):
        point = Point("mlp", 64, 40, 2, m, rate=rate)
        return measured(point, [0, 1, 2], (1.0, 1.0), [1.0, 1.0], latency)

    def seconds(latency, rate):
        mine, others = step(4, latency, rate), {2: step(2, latency, rate)}
        found = replay(mine, profiles, mine.point.on(1.6))
        args = mine.point, mine.cuts, others, profiles, mine.point.on(1.6)
        assert simulate(*args) == pytest.approx(found)
        return found

    # Of the 10 MB of ten samples 2.5 pass at once.
    assert seconds(-0.2, "100mbit") == pytest.approx(seconds(0.0, "133333.33333kbit"))
    assert seconds(-2.0, "100mbit") == pytest.approx(seconds(0.0, None))


@pytest.mark.parametrize(
    "rate, bandwidth", [("1gbit", 125e6), ("100mbit", 12.5e6), (None, float("inf"))]
)
def test_rates_are_in_bits(rate, bandwidth):
    from benchmarks.common.hosts import Hosts

    assert Hosts(2, 0.5, rate).bandwidth == bandwidth


def test_tables_say_what_chance_does():
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.rows import Row
    from benchmarks.paper_tables.verdicts import deviation, outliers, repeatability

    # 1 and 3 are half of their mean away from it, 10 is by itself.
    assert deviation([[1, 3], [10, 10]]) == pytest.approx(0.5)
    assert outliers(0.1, 0.1, 1) == pytest.approx(0.3173, abs=1e-4)
    assert outliers(0.1, 0.1, 4) == pytest.approx(0.0455, abs=1e-4)
    assert outliers(0.1, 0.0, 1) == 0

    def row(m, seconds, simulated):
        fields = dict.fromkeys(field.name for field in dataclasses.fields(Row))
        fields.update(seconds=seconds, simulated=simulated)
        return Row(**{**fields, "point": Point("mlp", 32, 40, 4, m)})

    mine = [row(1, [1.0, 3.0], [2.0, 7.2]), row(2, [1.0], [1.0])]
    assert repeatability({r.point: r for r in mine[1:]}) == []
    (line,) = repeatability({r.point: r for r in mine})[-1:]
    # The single round is outside 10% with the probability 0.44, the mean of two 0.27.
    assert line == "| mlp 32 | 1 of 2 | 70.7% | 12.9% | 0.7 |"


def test_speedups_are_of_rounds():
    from benchmarks.paper_tables.points import Point
    from benchmarks.paper_tables.report import spread
    from benchmarks.paper_tables.rows import in_rounds_of

    # The machine is half as fast in the second round.
    point = Point("mlp", 32, 40, 2, 4)
    steps = [sample(point, round=r, seconds=s) for r, s in ((1, 4.0), (0, 2.0))]
    rounds = ((0, 3.0), (1, 6.4), (2, 5.0))
    others = [sample(point.serial, round=r, seconds=s) for r, s in rounds]
    undivided = in_rounds_of(steps, others)
    assert undivided == [6.4, 3.0]
    assert spread(undivided, [4.0, 2.0]) == "1.55 (1.50..1.60)"
    # One that has no round of its own is compared with the last.
    assert in_rounds_of(steps, others[1:]) == [6.4, 5.0]
    assert in_rounds_of(steps, None) == []
    assert spread([3.0], [2.0]) == "1.50" and spread([], [2.0]) == ""


def test_tables_and_figures_are_written(tmp_path):
    from benchmarks.paper_tables.points import OURS, Point, Scale, with_serial
    from benchmarks.paper_tables.profiles import profile_files
    from benchmarks.paper_tables.report import write
    from benchmarks.paper_tables.samples import append
    from divisible import LayerCost, Profile

    def points(model, **options):
        return [
            Point(model, 32, 40, n, m, **options) for n in (2, 4) for m in (1, 3, 12)
        ]

    figures = {
        6: points("mlp"),
        8: points("mlp", rate="100mbit"),
        9: points("mlp"),
        10: [Point("mlp", 64, 40, 4, m) for m in (1, 3)],
        13: [*points("vgg16"), *points("vgg16", cut=OURS, schedule="zb_h1")],
    }
    every = with_serial(point for group in figures.values() for point in group)
    for point in every:
        append(tmp_path / "samples.jsonl", sample(point))
        for n, file in profile_files(tmp_path, point).items():
            file.parent.mkdir(exist_ok=True)
            Profile([LayerCost(n / 40, n / 40, n / 40)] * 4, n).save(file)
    write(figures, tmp_path, tmp_path, 1.6, Scale())
    text = (tmp_path / "README.md").read_text()
    # All but 3 of 1, 3 and 12 microbatches are at an end.
    assert re.search(r"vgg16: simulated, .* of 12 points \(\d of 4 between two", text)
    assert "## Fig. 13: VGG16" in text and "| 4 | ours, zb_h1 | 12 |" in text
    # Fig. 9 has no point that Fig. 6 has not.
    assert not (tmp_path / "fig09.png").exists()
    for number in ("06", "07", "08", "10", "12", "13"):
        name = f"fig{number}.png"
        assert name in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "points.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(set(every) - {p.serial for p in every})
    # 4 layers of 3 seconds for all samples, on two hosts of 0.8 cores. With one
    # microbatch each stage took 3 seconds, but 9 with three, for which a whole core
    # takes 6.
    first = lines[0]
    assert float(first["relative_speed"]) == pytest.approx(12 / 6 / 0.8)
    assert float(first["simulated"]) == pytest.approx(12 * 9 / 6)
    assert float(first["replayed"]) == pytest.approx(6)
    # Both stages computed all the time, with one microbatch that took 3 seconds.
    assert float(first["attained"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("simulated", "text"), [(2.0, "2 (0%)"), (1.999, "2 (0%)"), (2.2, "2.2 (+10%)")]
)
def test_errors_of_nothing_have_no_sign(simulated, text):
    from benchmarks.paper_tables.report import with_error
    from benchmarks.paper_tables.rows import Row

    row = Row(*[None] * len(dataclasses.fields(Row)))
    row = dataclasses.replace(row, seconds=[2.0])
    assert with_error(row, [simulated]) == text


def test_predictions_of_rounds_have_the_median_error():
    from benchmarks.paper_tables.report import with_error
    from benchmarks.paper_tables.rows import Row

    row = Row(*[None] * len(dataclasses.fields(Row)))
    # The machine of the second round is ten times as fast.
    row = dataclasses.replace(row, seconds=[10.0, 1.0, 1.2])
    assert with_error(row, [9.0, 1.1, 1.2]) == "1.2 (0%)"
    assert with_error(row, [11.0, 1.1, 1.0]) == "1.32 (+10%)"
    assert with_error(row, []) == ""


def test_rounds_are_predicted_by_themselves(tmp_path):
    from benchmarks.paper_tables.points import Point, with_serial
    from benchmarks.paper_tables.profiles import profile_files
    from benchmarks.paper_tables.rows import rows
    from benchmarks.paper_tables.samples import append

    cuts, seconds = [0, 1, 2], (3.0, 1.0)
    points = [Point("mlp", 32, 40, 2, m) for m in (1, 2, 8)]
    # The hosts of the second round are five times as slow.
    for number, slow in enumerate((2.0, 10.0)):
        for point in with_serial(points):
            found = measured(point, cuts, seconds, [slow, slow])
            step = dataclasses.replace(found, round=number, seconds=slow * 100)
            append(tmp_path / "samples.jsonl", step)
    files = profile_files(tmp_path, points[0])
    (tmp_path / "profiles").mkdir()
    for file, profile in zip(files.values(), profiles_of(seconds, files)):
        profile.save(file)
    # The first round has a point beyond the last of the table, which is not in it.
    more = Point("mlp", 32, 40, 2, 16)
    append(tmp_path / "samples.jsonl", measured(more, cuts, seconds, [2.0, 2.0]))
    # And the second, on another machine.
    elsewhere = measured(more, cuts, seconds, [50.0, 50.0])
    elsewhere = dataclasses.replace(elsewhere, round=1, machine="another")
    append(tmp_path / "samples.jsonl", elsewhere)
    found = rows(tmp_path, points, 1.6)
    assert list(found) == points
    assert [found[p].is_between for p in points] == [False, True, False]
    for row in found.values():
        assert row.serial == row.single == row.seconds == [200.0, 1000.0]
        assert row.simulated == pytest.approx(row.replayed)
        assert row.simulated[1] == pytest.approx(5 * row.simulated[0])
        # Fitted to three equal steps in each round.
        assert row.is_fitted and row.equation[1] == pytest.approx(5 * row.equation[0])
