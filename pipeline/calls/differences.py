"""Errors for calls that differ between the ranks of a pipeline.

Each function returns an error for ranks that made different calls. A call that agrees
passes none of them.
"""

from __future__ import annotations

import numpy as np

from divisible.communication.errors import DisagreementError


def of_calls(rank: int, here: str, one: str, other: str, where: str) -> Exception:
    """Returns the error for ranks that made different calls.

    Args:
        rank (int): This rank.
        here (str): Name of this rank's call.
        one (str): Name of a call of some rank.
        other (str): Name of another call of some rank.
        where (str): The ranks that must make the same calls, as the end of a sentence.
    """
    return DisagreementError(
        f"some ranks call {one} and others {other}; rank {rank} calls {here}. All ranks"
        f" must make the same calls in the same order{where}"
    )


def of_numbers(rank: int, here: int, other: int) -> Exception:
    """Returns the error for ranks that have made different numbers of calls.

    Args:
        rank (int): This rank.
        here (int): Number of calls of this rank.
        other (int): Number of calls of another rank.
    """
    return DisagreementError(
        f"for rank {rank} this is call {here} of the pipeline, for others it is call"
        f" {other}: a rank left a call out, or caught the error of one"
    )


def of_samples(n_inputs: int, n_targets: int, where: str) -> Exception:
    """Returns the error for different numbers of samples of ``x`` and ``t``.

    Args:
        n_inputs (int): Number of samples of ``x``.
        n_targets (int): Number of samples of ``t``.
        where (str): The replica, as the end of a phrase; empty if there is one.
    """
    return DisagreementError(
        f"x has {n_inputs} samples{where}, but t has {n_targets}: x and t must be of"
        f" the same minibatch; each array of a tuple or a list is an input of its own,"
        f" not a sample"
    )


def of_states(n_inputs: int, n_before: int, path: str, where: str) -> Exception:
    """Returns the error for more samples than a recurrent state has.

    Args:
        n_inputs (int): Number of samples of ``x``.
        n_before (int): Number of samples that the state has.
        path (str): Path of the link with the state.
        where (str): The replica, as the end of a phrase; empty if there is one.
    """
    return DisagreementError(
        f"x has {n_inputs} samples{where}, but layers go on from the minibatch before:"
        f" {path} carries the state of {n_before}. Give minibatches of one size, or"
        f" call reset_states() on every rank before"
    )


def of_places(replica: int, start: int, start_before: int, path: str) -> Exception:
    """Returns the error for a replica whose samples are others than before.

    Args:
        replica (int): The replica.
        start (int): Place of its first sample in the minibatch of all replicas.
        start_before (int): Place of its first sample with a state.
        path (str): Path of a link with a state.
    """
    return DisagreementError(
        f"carry_state goes together with replicas that have the same samples in each"
        f" minibatch, but the first sample of replica {replica} is {start}, and {path}"
        f" carries the states from sample {start_before} on. Give minibatches of one"
        f" size, in the same shares, or call reset_states() on every rank before"
    )


def of_loss_scales(least: int, most: int) -> Exception:
    """Returns the error for different loss scales.

    Args:
        least (int): Bits of the smallest loss scale, a float64.
        most (int): Bits of the largest one.
    """
    low, high = np.array([least, most]).view(float)
    return DisagreementError(
        f"the ranks scale the loss by {low:g} up to {high:g}: their optimizers must"
        f" decide together, as MixedPrecision(optimizer, comm=comm) does"
    )


def of_products(rank: int, here: str) -> Exception:
    """Returns the error for products in different dtypes.

    Args:
        rank (int): This rank.
        here (str): Dtype of this rank's products.
    """
    return DisagreementError(
        f"some ranks compute products in bfloat16 and others in float32; rank {rank}"
        f" computes in {here}. Use chainer_kernels.products, MixedPrecision(...,"
        f" products=) and CHAINER_KERNELS_PRODUCTS in the same way on every rank"
    )
