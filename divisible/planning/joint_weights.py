"""Costs of weight gradients that several microbatches compute as one product.

A group of ``k`` microbatches of ``n`` samples takes as long as one of ``k n`` samples.
Each microbatch has its share of that::

    W of a microbatch    alone W(n)    in a group W(k n) / k
"""

from __future__ import annotations

from dataclasses import replace

from divisible.planning.profile import Profile


def with_joint_weights(alone: Profile, together: Profile, size: int) -> Profile:
    """Returns the profile of a microbatch whose weight gradients are part of a group.

    Args:
        alone: The profile of a microbatch.
        together: The profile of as many samples as the group has.
        size: Number of microbatches in the group.

    Returns:
        Profile: The profile with the share of each microbatch; where a group is not
        faster, the time of the microbatch alone.

    Example:
        >>> from divisible import LayerCost
        >>> alone = Profile([LayerCost(1.0, 1.0, 1.0)], n_samples=2)
        >>> together = Profile([LayerCost(3.0, 3.0, 2.0)], n_samples=8)
        >>> with_joint_weights(alone, together, size=4).layers[0].backward_weight
        0.5
    """
    layers = [
        replace(
            one,
            backward_weight=min(one.backward_weight, other.backward_weight / size),
        )
        for one, other in zip(alone.layers, together.layers)
    ]
    return replace(alone, layers=layers)
