"""Fig. 11 and 12 of Ozawa et al., drawn from measured points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.heterogeneous.measured import METHODS, OURS, Measured

#: Readable for colour-blind eyes.
COLORS = ("#4477aa", "#228833", "#ee6677", "#ccbb44", "#aa3377")
MARKERS = "osD^v"
#: Horizontal distance of the methods' markers, in hosts.
BESIDE = 0.04


#: Markers of what moved in a check of Fig. 12.
MOVED = {"whole": ("s", "everything moved"), "line": ("^", "lines moved")}


def draw_efficiency(measured: Sequence[Measured], path: Path) -> None:
    """Draws the efficiency of each method by the number of hosts.

    A bar is the range of the rounds. A dashed line is simulated.

    Args:
        measured: Points of one condition.
        path: File to write.
    """
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    hosts = [each.point.hosts for each in measured]
    for i, method in enumerate(METHODS):
        places = [n + (i - 2) * BESIDE for n in hosts]
        values = [each.efficiency(method) for each in measured]
        below, above = zip(
            *(
                (value - low, high - value)
                for value, (low, high) in zip(
                    values, (each.range(method) for each in measured)
                )
            )
        )
        style = {"color": COLORS[i], "marker": MARKERS[i], "markersize": 5}
        bars = {"yerr": (below, above), "capsize": 2, "elinewidth": 0.8}
        axes.errorbar(places, values, **bars, **style, label=method)
        simulated = [each.simulated(method) for each in measured]
        axes.plot(places, simulated, "--", color=COLORS[i], linewidth=0.9)
    ours = [name for name in OURS if name in measured[0].efficiencies]
    for name, marker in zip(ours, "x+1"):
        values = [each.efficiency(name) for each in measured]
        style = {"color": "black", "marker": marker, "linestyle": "none"}
        axes.plot(hosts, values, **style, label=f"ours: {name.removeprefix('our ')}")
    axes.set_xlabel("hosts")
    axes.set_ylabel("parallel efficiency, equation (11)")
    axes.set_xticks(hosts)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(f"condition {measured[0].point.condition}")
    title = "dashed: simulated"
    figure.legend(loc="outside right upper", title=title, fontsize="small")
    figure.savefig(path, dpi=120)


def draw_checks(measured: Measured, path: Path) -> None:
    """Draws the seconds of the iterations before each check, and what moved: Fig. 12.

    Args:
        measured: The point.
        path: File to write.
    """
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, (method, checks) in enumerate(measured.checks.items()):
        numbers = range(1, len(checks) + 1)
        seconds = [check["seconds"] for check in checks]
        axes.plot(numbers, seconds, "-o", markersize=3, color=COLORS[i], label=method)
        for action, (marker, _) in MOVED.items():
            places = [n for n, c in zip(numbers, checks) if c["action"] == action]
            values = [seconds[n - 1] for n in places]
            style = {"color": COLORS[i], "linestyle": "none", "markersize": 9}
            axes.plot(places, values, marker=marker, fillstyle="none", **style)
    for marker, text in MOVED.values():
        axes.plot([], [], marker, color="grey", fillstyle="none", label=text)
    axes.set_xlabel("check")
    axes.set_ylabel(f"seconds of {measured.point.every} iterations")
    axes.set_xticks([*numbers])
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(str(measured.point))
    figure.savefig(path, dpi=120)
