"""Warnings of the ranks at the start, from the announcements of all."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from pipeline.start.agreement import StartAnnouncement


def warnings_of(
    said: Sequence[StartAnnouncement], dtypes: Set[np.dtype]
) -> list[list[str]]:
    """Returns the warnings that each rank shows, each of them once."""
    warnings: list[list[str]] = [[] for _ in said]
    if np.dtype(np.float16) in dtypes and said[0].settings["loss_scale"] == "None":
        warnings[0].append(
            "the model has float16 parameters, but the pipeline no loss_scale: small"
            " gradients become zero, and small updates are lost. Train with optimizer ="
            " mixed_precision.MixedPrecision(optimizer, comm=comm) and Pipeline(...,"
            " loss_scale=optimizer.loss_scale). With loss_scale=1 this is silent"
        )
    others = [rank for rank, w in enumerate(said) if w.arithmetic != said[0].arithmetic]
    if others:
        warnings[0].append(
            f"rank {others[0]} computes by {said[others[0]].arithmetic}, and rank 0 by"
            f" {said[0].arithmetic}: the last bits depend on the cut. Install the same"
            f" on all hosts, and set the same CHAINER_KERNELS"
        )
    drawn = {rank: w.early_draws for rank, w in enumerate(said) if w.early_draws}
    states = {rank: draws.state for rank, draws in drawn.items()}
    if len(set(states.values())) > 1:
        first, *rest = states
        other = next(rank for rank in rest if states[rank] != states[first])
        warnings[0].append(
            f"from_chain drew the weights of {drawn[first].names} from other numbers on"
            f" rank {other} than on rank {first}, so they depend on the cut. Give"
            f" numpy.random.seed the same number on all ranks, and make the iterators"
            f" on all ranks"
        )
    ranks_on: dict[str, list[int]] = {}
    for rank, word in enumerate(said):
        ranks_on.setdefault(word.host, []).append(rank)
    for host, ranks in ranks_on.items():
        n_threads, n_cores = said[ranks[0]].n_threads, said[ranks[0]].n_cores
        # Threads use a core while they wait, which makes a step many times slower.
        if n_threads > 1 and len(ranks) * n_threads > n_cores:
            warnings[ranks[0]].append(
                f"{len(ranks)} ranks on {host} with {n_threads} threads each share"
                f" {n_cores} cores and slow each other down: set the environment"
                f" variable OMP_NUM_THREADS={max(1, n_cores // len(ranks))}"
            )
    return warnings
