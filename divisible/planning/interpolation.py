"""Profiles of a model at other sizes of microbatch than were measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from divisible.planning.layer_cost import PARTS, SAMPLE_BYTES, SECONDS, LayerCost
from divisible.planning.profile import Profile


def interpolate(profiles: Sequence[Profile], n_samples: int) -> Profile:
    """Estimates the profile at a size of microbatch from those at other sizes.

    Times and sizes of activations are assumed to be linear between two sizes, and
    beyond the range on either side. Below the range no microbatch costs less than its
    share of the smallest one measured, nor more than that one; above it none costs less
    than the largest. With a single profile they are in proportion.

    Args:
        profiles: Profiles of the same model, at different sizes.
        n_samples: Samples of the microbatch.

    Returns:
        Profile: The estimate; a given profile if it is of this size.

    Raises:
        ValueError: If there is no profile, the profiles are of different models, or
            ``n_samples`` is less than 1.

    Example:
        >>> small = Profile([LayerCost(0.3, 0, 0)], n_samples=10)
        >>> large = Profile([LayerCost(0.5, 0, 0)], n_samples=20)
        >>> [round(interpolate([small, large], n).layers[0].forward, 9)
        ...  for n in (5, 15, 30)]
        [0.2, 0.4, 0.7]
    """
    profiles = sort_profiles(profiles)
    if n_samples < 1:
        raise ValueError(f"n_samples must be at least 1, not {n_samples}")
    for profile in profiles:
        if profile.n_samples == n_samples:
            return profile
    sizes = [profile.n_samples for profile in profiles]
    nearest = profiles[int(np.argmin(np.abs(np.array(sizes) - n_samples)))]
    above = int(np.clip(np.searchsorted(sizes, n_samples), 1, max(1, len(sizes) - 1)))

    def estimate(costs: Sequence[LayerCost]) -> LayerCost:
        values = {}
        for name in (*SECONDS, *SAMPLE_BYTES):
            y = [getattr(cost, name) for cost in costs]
            share = y[0] * n_samples / sizes[0]
            if len(sizes) == 1:
                value = share
            else:
                x0, x1 = sizes[above - 1 : above + 1]
                y0, y1 = y[above - 1 : above + 1]
                value = y0 + (y1 - y0) * (n_samples - x0) / (x1 - x0)
                if n_samples < sizes[0]:
                    value = max(min(value, y[0]), share)
                elif n_samples > sizes[-1]:
                    value = max(value, y[-1])
            values[name] = value if name in SECONDS else round(value)
        # Extrapolated values may exceed the whole that they are a part of.
        for part, whole in PARTS:
            if part in values:
                values[part] = min(values[part], values[whole])
        return dataclasses.replace(costs[profiles.index(nearest)], **values)

    layers = [estimate(costs) for costs in zip(*(p.layers for p in profiles))]
    loss = None
    if nearest.loss is not None:
        loss = estimate([profile.loss for profile in profiles])
    return Profile(
        layers,
        n_samples,
        round(nearest.input_bytes * n_samples / nearest.n_samples),
        loss,
        nearest.machine,
        nearest.coding,
        nearest.scatter,
    )


def sort_profiles(profiles: Sequence[Profile]) -> list[Profile]:
    """Returns profiles of one model by size.

    Raises:
        ValueError: If the profiles are of different models, two are of one size, or
            there is none.
    """
    profiles = sorted(profiles, key=lambda profile: profile.n_samples)
    if not profiles:
        raise ValueError("there is no profile: give one Profile at least")
    names = [[layer.name for layer in profile.layers] for profile in profiles]
    for profile, theirs in zip(profiles, names):
        if (profile.loss is None) != (profiles[0].loss is None):
            raise ValueError(
                f"of the profiles at {profiles[0].n_samples} and {profile.n_samples}"
                f" samples one has a loss and the other has none: give targets to both"
                f" or to neither"
            )
        if theirs != names[0]:
            what = f"of {len(names[0])} and {len(theirs)} layers"
            for i, (name, its) in enumerate(zip(names[0], theirs)):
                if name != its:
                    what = f"whose layers {i} are {name} and {its}"
                    break
            raise ValueError(
                f"the profiles at {profiles[0].n_samples} and {profile.n_samples}"
                f" samples are of different models, {what}"
            )
    sizes = [profile.n_samples for profile in profiles]
    for size, following in zip(sizes, sizes[1:]):
        if size == following:
            raise ValueError(
                f"two of the profiles are at {size} samples: give one for each size"
            )
    return profiles
