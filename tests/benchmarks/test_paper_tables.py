"""What the tables of the paper are made of; the hosts themselves are not started."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("divisible.layer_costs", reason="needs the planner")


def sample(point, **values):
    from paper_tables.samples import Sample

    one = [[1.0] * point.microbatches] * point.hosts
    fields = {
        "round": 0,
        "seconds": 3.0,
        "cuts": list(range(0, 5, 4 // point.hosts)),
        "forward": one,
        "backward_input": one,
        "backward_weight": one,
        "busy": [2.0 / point.hosts] * point.hosts,
        "spread": [0.0] * point.hosts,
        "machine": "a machine",
        "load": 0.5,
        "date": "today",
    }
    return Sample(point, **{**fields, **values})


def test_the_papers_points_are_among_those_measured():
    from paper_tables.points import FIGURE_7, FIGURE_13, FIT, Scale, figures

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


@pytest.mark.parametrize("n_hosts", [1, 2, 3, 8, 32])
def test_the_papers_cut_has_equally_many_layers(n_hosts):
    from paper_tables.models import build, cuts
    from paper_tables.points import Point

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
    from paper_tables.models import cuts
    from paper_tables.points import OURS, Point

    from divisible import LayerCost, Profile

    profiles = [
        Profile([LayerCost(s * n, s * n, s * n, output_bytes=n) for s in seconds], n)
        for n in (1, 10)
    ]
    point = Point("vgg16", 32, 40, 4, 10, cut=OURS)
    found = cuts(point, profiles, point.on(1.6))
    assert len(found) == stages + 1 and found[0] == 0 and found[-1] == 4


def test_a_burst_of_noise_is_not_in_a_profile():
    from paper_tables.profiles import medians

    from divisible import LayerCost, Profile

    def measured(*seconds):
        costs = [LayerCost(s, 2 * s, 3 * s, output_bytes=8) for s in seconds]
        return Profile(costs[:-1], 10, loss=costs[-1])

    quiet = measured(1.0, 2.0, 0.5)
    assert medians([quiet, measured(9.0, 2.0, 0.5), measured(1.0, 7.0, 4.0)]) == quiet


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    from paper_tables.cli import missing_rounds
    from paper_tables.points import Point, with_serial
    from paper_tables.samples import append, read

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


def predicted(microbatches, schedule="1f1b", seconds=(10,) * 4, slower=1, **values):
    """Predicts a step of four layers on four hosts.

    Args:
        microbatches: Of 40 samples.
        schedule: Of the pipeline.
        seconds: Of each phase of each layer, for a sample on a whole core.
        slower: How much slower all hosts but the first are than their share of a core.
        values: Of the measured sample.
    """
    from paper_tables.points import Point
    from paper_tables.simulations import predict

    from divisible import LayerCost, Profile

    point = Point("mlp", 64, 40, 4, microbatches, schedule=schedule)
    hosts = point.on(1.6)
    profiles = [
        Profile([LayerCost(n * each, n * each, n * each) for each in seconds], n)
        for n in (1, 40)
    ]
    busy = 3 * point.samples / hosts.share * np.array(seconds) * [1, *[slower] * 3]
    # Not an older sample, whose `busy` may be of fewer samples.
    found = sample(point, busy=busy.tolist(), pages=0, **values)
    return predict(found, profiles, hosts)


def test_messages_are_late_whose_sender_goes_on_to_compute():
    late = {"delay": [500.0] * 3, "idle_delay": [1.0] * 3}
    soon = {"delay": [1.0] * 3, "idle_delay": [1.0] * 3}
    # Nobody has anything else to do with one microbatch.
    assert predicted(1, **late) == pytest.approx(predicted(1, **soon))
    # In ZB-H1 W follows I, which the stage before waits for.
    assert predicted(4, "zb_h1", **late) > predicted(4, "zb_h1", **soon) + 500


@pytest.mark.parametrize(
    "microbatches, least, most", [(1, 0.8, 0.8), (4, 0.81, 0.9), (40, 0.97, 0.995)]
)
def test_hosts_are_faster_while_others_wait(microbatches, least, most):
    # With one microbatch they take turns, with many all are busy most of the time.
    ratio = predicted(microbatches, alone=[0.8] * 4) / predicted(microbatches)
    assert least * 0.999 < ratio < most * 1.001
    # Older samples have one number for all.
    assert ratio == predicted(microbatches, alone=0.8) / predicted(microbatches)


def test_each_host_is_faster_by_what_it_was_itself():
    # The first of them does nearly everything.
    seconds = (40, 1, 1, 1)
    step = predicted(1, seconds=seconds)
    first = predicted(1, seconds=seconds, alone=[0.8, 1, 1, 1])
    others = predicted(1, seconds=seconds, alone=[1, 0.8, 0.8, 0.8])
    assert first / step == pytest.approx(1 - 0.2 * 40 / 43, rel=1e-3)
    assert others / step == pytest.approx(1 - 0.2 * 3 / 43, rel=1e-3)


def test_a_slow_host_with_a_small_stage_does_not_slow_the_others():
    # The first host takes 40 times as long as any other.
    assert predicted(20, seconds=(40, 1, 1, 1), slower=4) == pytest.approx(
        predicted(20, seconds=(40, 1, 1, 1)), rel=0.02
    )
    assert predicted(20, slower=4) > 3 * predicted(20)


def test_older_samples_have_one_speed_for_all_hosts():
    from paper_tables.points import Point
    from paper_tables.simulations import busy_speeds

    from divisible import LayerCost, Profile

    profile = Profile([LayerCost(2, 1, 1)] * 4, 8)
    point = Point("mlp", 64, 40, 4, 5)
    # Of as many hosts as the step, or not.
    for busy in ([8, 16, 16, 40], [80]):
        found = busy_speeds(sample(point, busy=busy), [profile])
        assert found.tolist() == [0.2] * 4
    found = busy_speeds(sample(point, busy=[8, 16, 16, 40], pages=0), [profile])
    assert found.tolist() == [0.5, 0.25, 0.25, 0.1]


def test_hosts_that_wait_for_each_other_have_quota_left_for_short_phases():
    from paper_tables.points import Point
    from paper_tables.simulations import predict

    from divisible import LayerCost, Profile

    point = Point("mlp", 64, 40, 4, 1)
    hosts = point.on(1.6)

    def predicted(unit):
        profiles = [
            Profile([LayerCost(unit * n, unit * n, unit * n)] * 4, n) for n in (8, 40)
        ]
        # As fast as their share of a core.
        busy = [3 * 8 * unit / hosts.share] * 4
        return predict(sample(point, busy=busy), profiles, hosts)

    # One after the other: 12 times 40 units.
    assert predicted(1.0) == pytest.approx(480 / 0.4, rel=0.01)
    assert 480 <= predicted(1e-5) / 1e-5 < 0.7 * 480 / 0.4


@pytest.mark.parametrize(
    "measured, chosen",
    [
        ([1, 3, 5, 12, 40, 80], [3, 12, 40]),
        ([1, 2, 4, 20], [2, 4, 20]),
        ([1, 2], [1, 2]),
    ],
)
def test_equation_3_is_fitted_as_in_figure_12(measured, chosen):
    from paper_tables.rows import fit_points

    assert fit_points(measured) == chosen


def test_layers_share_the_seconds_of_their_stage():
    from paper_tables.rows import seconds_in_step

    found = seconds_in_step([10.0, 2.0, 4.0], [0, 1, 3], [9.0, 18.0])
    assert found.tolist() == [9.0, 6.0, 12.0]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_phases_and_messages_of_a_timeline_make_up_its_step(name):
    import numpy as np
    from _mlp import phase_costs

    from pipeline import Costs, schedules, simulate

    random = np.random.RandomState(0)
    schedule = schedules.create(name, 4, 6)
    durations = random.gamma(1.0, 1.0, (3, 4, 6))
    transfer, latency = [0.1, 0.2, 0.0], 0.3
    costs = Costs(*durations, transfer=transfer, latency=latency)
    timeline = simulate(schedule, costs)
    found = phase_costs(timeline, transfer)
    assert found.latency == pytest.approx(latency)
    assert np.array(found.forward) == pytest.approx(durations[0])
    whole = durations[1] if name == "zb_h1" else durations[1] + durations[2]
    assert np.array(found.backward_input) == pytest.approx(whole)
    again = simulate(schedule, found).makespan
    assert again == pytest.approx(timeline.makespan)


@pytest.mark.parametrize(
    "rate, bandwidth", [("1gbit", 125e6), ("100mbit", 12.5e6), (None, float("inf"))]
)
def test_rates_are_in_bits(rate, bandwidth):
    from _hosts import Hosts

    assert Hosts(2, 0.5, rate).bandwidth == bandwidth


def test_tables_say_what_chance_does():
    from paper_tables.points import Point
    from paper_tables.rows import Row
    from paper_tables.verdicts import deviation, outliers, repeatability

    # 1 and 3 are half of their mean away from it, 10 is by itself.
    assert deviation([[1, 3], [10, 10]]) == pytest.approx(0.5)
    assert outliers(0.1, 0.1, 1) == pytest.approx(0.3173, abs=1e-4)
    assert outliers(0.1, 0.1, 4) == pytest.approx(0.0455, abs=1e-4)
    assert outliers(0.1, 0.0, 1) == 0

    def row(m, seconds, predicted):
        point = Point("mlp", 32, 40, 4, m)
        values = [0, 4], None, predicted, 1.0, seconds, seconds, 1.0, 1.0, 0.0, True
        return Row(point, seconds, seconds, [], *values)

    mine = [row(1, [1.0, 3.0], [2.0, 7.2]), row(2, [1.0], [1.0])]
    assert repeatability({r.point: r for r in mine[1:]}) == []
    (line,) = repeatability({r.point: r for r in mine})[-1:]
    # The single round is outside 10% with the probability 0.44, the mean of two 0.27.
    assert line == "| mlp 32 | 1 of 2 | 70.7% | 12.9% | 0.7 |"


def test_speedups_are_of_rounds():
    from paper_tables.points import Point
    from paper_tables.report import spread
    from paper_tables.rows import in_rounds_of

    # The machine is half as fast in the second round.
    point = Point("mlp", 32, 40, 2, 4)
    steps = [sample(point, round=r, seconds=s) for r, s in ((1, 4.0), (0, 2.0))]
    rounds = ((0, 3.0), (1, 6.4), (2, 5.0))
    others = [sample(point.serial, round=r, seconds=s) for r, s in rounds]
    undivided = in_rounds_of(steps, others)
    assert undivided == [6.4, 3.0]
    assert spread(undivided, [4.0, 2.0]) == "1.55 (1.50..1.60)"
    # One that has no round of its own is compared with all of them.
    assert in_rounds_of(steps, others[1:]) == [6.4, 5.7]
    assert in_rounds_of(steps, None) == []
    assert spread([3.0], [2.0]) == "1.50" and spread([], [2.0]) == ""


def test_tables_and_figures_are_written(tmp_path):
    from paper_tables.points import OURS, Point, Scale, with_serial
    from paper_tables.profiles import profile_files
    from paper_tables.report import write
    from paper_tables.samples import append

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
    write(figures, tmp_path, 1.6, Scale())
    text = (tmp_path / "README.md").read_text()
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
    # 4 layers of 3 seconds for all samples. They take 2.4 seconds for the fifth of the
    # samples in the probe, for which two hosts of 0.8 cores took 2.
    first = lines[0]
    assert float(first["relative_speed"]) == pytest.approx(2.4 / 2 / 0.8)
    before = float(first["simulated_before"])
    assert before == pytest.approx(4 * 3 / (2.4 / 2), rel=0.01)
    # Both stages computed all the time, with one microbatch that took 3 seconds.
    assert float(first["attained"]) == pytest.approx(1.0)
