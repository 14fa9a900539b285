"""Profiles as pictures; needs matplotlib."""

from __future__ import annotations

import os

import numpy as np

from divisible.files import new_figure, write_picture
from divisible.planning.profile import Profile
from divisible.schedules.bars import COLORS
from divisible.schedules.plot import DPI, LABELS, time_unit


def plot_profile(
    profile: Profile, path: str | os.PathLike, title: str | None = None
) -> None:
    """Draws the costs of a model's layers: seconds above, bytes below.

    Args:
        profile: Profile to draw; the loss is part of its last layer.
        path: Path of the picture; the ending gives the format.
        title: Text above the picture.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    layers = np.arange(len(profile))
    width = min(max(0.22 * len(profile), 6.0), 24.0)
    figure = new_figure((width, 5.5), "drawing a profile", DPI)
    above, below = figure.subplots(2, sharex=True)
    scale, unit = time_unit(profile.column("forward").max())
    _stack(
        above,
        layers,
        {
            (LABELS["F"], COLORS["F"]): scale * profile.column("forward"),
            (LABELS["I"], COLORS["I"]): scale * profile.column("backward_input"),
            (LABELS["W"], COLORS["W"]): scale * profile.column("backward_weight"),
        },
    )
    above.set_ylabel(f"time [{unit}]")
    mebi = 2.0**20
    _stack(
        below,
        layers,
        {
            ("parameters", "#4477aa"): profile.column("parameter_bytes") / mebi,
            ("gradients", "#88aacc"): profile.column("parameter_bytes") / mebi,
            ("optimizer", "#aa88bb"): profile.column("optimizer_bytes") / mebi,
            ("activations", "#cc6677"): profile.column("activation_bytes") / mebi,
        },
    )
    below.set_ylabel("memory [MiB]")
    below.set_xlabel("layer")
    above.set_title(
        f"{title or 'profile'}, {profile.n_samples} samples", loc="left", fontsize=11
    )
    write_picture(path, figure)


def _stack(axes, layers: np.ndarray, parts: dict[tuple[str, str], np.ndarray]) -> None:
    """Draws a bar for each layer, of parts on top of each other."""
    bottom = np.zeros(len(layers))
    for (label, color), values in parts.items():
        axes.bar(layers, values, bottom=bottom, label=label, color=color)
        bottom += values
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
