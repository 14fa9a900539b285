"""Fig. 11 of Ozawa et al., drawn from measured points."""

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


def draw(measured: Sequence[Measured], path: Path) -> None:
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
