"""Pictures show what timelines say: pixels are counted."""

import numpy as np
import pytest

from divisible import simulate
from divisible.schedules import Costs, Timeline
from divisible.schedules.bars import COLORS, least_width
from divisible.schedules.catalogue import CATALOGUE, create
from divisible.schedules.plot import plot_timelines

pytest.importorskip("matplotlib")
from matplotlib.colors import to_rgb
from matplotlib.image import imread


def rows_of(timeline, folder):
    """Returns the pixels of each rank's row, a fifth of its height from above."""
    path = folder / "t.png"
    timeline.plot(path)
    image = imread(path)[..., :3]
    coloured = np.ptp(image, axis=2) > 0.1
    columns = np.flatnonzero(coloured.any(axis=0))
    # A rank has more colour than the legend.
    lines = np.flatnonzero(coloured.sum(axis=1) > 300)
    top, height = lines[0], (lines[-1] + 1 - lines[0]) / timeline.n_ranks
    heights = (top + height * (np.arange(timeline.n_ranks) + 0.2)).astype(int)
    return image[heights, columns[0] : columns[-1] + 1]


@pytest.mark.parametrize(
    ("name", "d", "m", "transfer"),
    [
        ("1f1b", 2, 12, 0.1),
        ("1f1b", 4, 32, 0.1),
        ("1f1b", 4, 128, 0.1),
        ("zb_v", 4, 48, 0.0),
        ("zb_h1", 3, 400, 0.0),
    ],
)
def test_as_much_is_white_as_ranks_wait(tmp_path, name, d, m, transfer):
    schedule = create(name, CATALOGUE[name].stages_per_rank * d, m, d)
    timeline = simulate(schedule, Costs(1, 1, 1, transfer=transfer))
    rows = rows_of(timeline, tmp_path)
    white = (rows.min(axis=2) > 0.95).mean(axis=1)
    # A pixel at either end of the few long pauses, of 1600.
    assert white == pytest.approx(timeline.bubble, abs=0.004)


@pytest.mark.parametrize("n", [20, 100, 700, 5000])
def test_a_rank_that_never_waits_has_no_white(tmp_path, n):
    events = [(0, f"0{'FB'[i % 2]}{i // 2}", i, i + 1) for i in range(n)]
    timeline = Timeline([*events, (1, "1F0", 0, n / 2)])
    assert timeline.bubble.tolist() == [0, 0.5]
    rows = rows_of(timeline, tmp_path)
    assert not (rows[0].min(axis=1) > 0.9).any()
    assert (rows[1].min(axis=1) > 0.9).mean() == pytest.approx(0.5, abs=0.002)
    if n <= 1000:
        # Half of it is forward, half backward, but for the lines that tell bars apart.
        blue = np.abs(rows[0] - to_rgb(COLORS["F"])).max(axis=1) < 0.01
        green = np.abs(rows[0] - to_rgb(COLORS["B"])).max(axis=1) < 0.01
        assert blue.mean() == pytest.approx(green.mean(), abs=0.01)
        assert blue.mean() + green.mean() > 0.8


def test_an_update_has_a_colour_of_its_own(tmp_path):
    events = [(0, "0F0", 0, 1), (0, "0B0", 1, 2), (0, "update", 2, 4, "update")]
    (row,) = rows_of(Timeline(events), tmp_path)
    assert np.abs(row - to_rgb(COLORS["update"])).max(axis=1).argmin() > len(row) // 2
    shares = [
        (np.abs(row - to_rgb(COLORS[category])).max(axis=1) < 0.01).mean()
        for category in ("F", "B", "update")
    ]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.01)


def texts_of(timeline, folder, *others):
    """Returns what is written on bars, with places, as it is in a picture of paths."""
    import matplotlib.axes

    found = []
    original = matplotlib.axes.Axes.text

    def text(self, x, y, words, **options):
        found.append((words, x, y))
        return original(self, x, y, words, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.axes.Axes, "text", text)
        shown = {str(i): each for i, each in enumerate([timeline, *others])}
        plot_timelines(shown, folder / "t.svg")
    return found


@pytest.mark.parametrize("m", [8, 9, 12, 20, 33, 52])
def test_equal_bars_all_have_a_text_or_none_has(tmp_path, m):
    """Whatever their digits, and what rounding makes of their widths."""
    schedule = create("1f1b", 4, m)
    timeline = simulate(schedule, Costs(0.1, 0.1, 0.1, transfer=0.01))
    n_written = len(texts_of(timeline, tmp_path))
    # Forwards and backwards: all, only the longer ones, or none.
    assert n_written in (2 * 4 * m, 4 * m, 0)


def test_bars_of_measured_times_that_look_alike_are_treated_alike(tmp_path):
    random = np.random.RandomState(0)
    for m in (20, 40):
        seconds = random.uniform(0.97, 1.03, (3, 4, m))
        timeline = simulate(create("1f1b", 4, m), Costs(*seconds))
        assert len(texts_of(timeline, tmp_path)) in (2 * 4 * m, 4 * m, 0)


def test_widths_that_differ_by_rounding_are_on_one_side():
    widths = np.array([1.0, 5.0 - 1e-12, 5.0, 5.0 + 1e-12, 9.0])
    assert least_width(widths, 5.0) == 9.0
    assert least_width(widths, 4.9) == pytest.approx(5.0)
    assert least_width(widths, 10.0) == np.inf
    assert least_width(np.array([]), 1.0) == np.inf


def test_two_timelines_on_one_scale_are_treated_alike(tmp_path):
    """Two microbatches have one digit, and those of the other timeline two."""
    costs = Costs(0.1, 0.1, 0.1)
    many, few = (simulate(create("gpipe", 2, m), costs) for m in (40, 2))
    assert len(texts_of(few, tmp_path)) == 2 * 2 * 2
    found = texts_of(many, tmp_path, few)
    # Backwards have room for two digits, and forwards have none.
    assert [sum(x == words for words, *_ in found) for x in "01"] == [4, 4]
    assert len(found) == 2 * (40 + 2)
