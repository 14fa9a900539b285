"""Makes the parts of a step that depend on which rank has which layers.

They are made at the start, and once more when layers have moved to other ranks::

    start ---> stages --> runner, over a transport
                 |------> ties          parameters that several stages share
                 '------> updates       compares how optimizers treat them

All ranks must call these functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import chainer
import numpy as np

from chainer_kernels.product_dtype import FLOAT32
from chainer_kernels.switch import products_in_force
from divisible.communication.collectives import all_gather
from divisible.communication.one_sided import OneSidedTransport
from divisible.communication.transport import Transport
from divisible.planning.retained_arrays import HALF
from divisible.streaming.held_in_half import HeldInHalf
from divisible.streaming.held_store import HeldStore
from divisible.user_warnings import warn_user
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.hooks.global_hooks import GlobalHooks
from pipeline.hooks.update_agreement import UpdateAgreement
from pipeline.stages.held_elsewhere import HeldElsewhere
from pipeline.stages.leaving_arrays import Leaving
from pipeline.stages.stage import Stage
from pipeline.stages.stage_skips import StageSkips
from pipeline.start.agreement import Start
from pipeline.start.arguments import Arguments, directory_of
from pipeline.step.runner import Runner


def make_stages(
    start: Start, ranks: Ranks, make: type[Stage] = Stage
) -> dict[int, Stage]:
    """Returns a rank's stages, by their number in the pipeline.

    Args:
        start (Start): Arguments of all ranks.
        ranks (Ranks): All ranks of the pipeline.
        make: Class of the stages.
    """
    arguments, loss, gather = start.arguments, start.loss, None
    if ranks.grid is not None:
        gather = functools.partial(
            all_gather,
            ranks.grid.data,
            timeout=arguments.timeout,
            purpose="to share what batch normalization has found",
        )
    numbers = [i for i, owner in enumerate(start.stage_ranks) if owner == ranks.rank]
    last = len(start.stage_ranks) - 1
    if last not in numbers:
        # Chainer's gradients begin as NaN, and on this rank nothing else clears these.
        for param in loss.params():
            param.cleargrad()
    return {
        number: make(
            layers,
            loss if number == last else None,
            arguments.seed,
            arguments.deferred_batch_norm,
            ranks.replica * arguments.n_microbatches,
            gather,
            arguments.recomputed,
            StageSkips.on(number, start.named_routes),
        )
        for number, layers in zip(numbers, arguments.stages)
    }


def make_ties(
    start: Start, stages: Mapping[int, Stage], ranks: Ranks
) -> TieExchange | None:
    """Returns the exchange of shared parameters' gradients.

    Args:
        start (Start): The stages' ranks, and the parameters that several stages share.
        stages: This rank's stages, by number.
        ranks (Ranks): All ranks of the pipeline.

    Returns:
        TieExchange or None: The exchange; ``None`` if stages share no parameter.
    """
    if not start.shared:
        return None
    layers = {number: stage.layers for number, stage in stages.items()}
    return TieExchange(
        start.shared,
        layers,
        start.stage_ranks,
        ranks.comm,
        ranks.timeout,
        ranks.watch,
        f"{start.name} ties",
    )


def make_updates(
    start: Start,
    stages: Mapping[int, Stage],
    ranks: Ranks,
    hooks: GlobalHooks | None = None,
) -> UpdateAgreement:
    """Returns the comparison of how the ranks' optimizers treat the model.

    Args:
        start (Start): The stages' ranks and arguments.
        stages: This rank's stages, by number.
        ranks (Ranks): All ranks of the pipeline.
        hooks (GlobalHooks or None): Hooks of optimizers known so far, if layers have
            moved.
    """
    layers = {number: stage.layers for number, stage in stages.items()}
    if hooks is None:
        n_stages, seed = len(start.stage_ranks), start.arguments.seed
        hooks = GlobalHooks(layers, start.loss.links, n_stages, seed, ranks)
    return UpdateAgreement(start.shared, layers, hooks, ranks)


def make_runner(start: Start, stages: Mapping[int, Stage], ranks: Ranks) -> Runner:
    """Returns the runner of schedules, over the transport of the arguments.

    Args:
        start (Start): The stages' ranks, skip connections and arguments.
        stages: This rank's stages, by number.
        ranks (Ranks): All ranks of the pipeline.
    """
    arguments = start.arguments
    if arguments.transport == "mpi":
        xp = arguments.stages[0].device.xp
        transport = Transport(ranks.comm, ranks.timeout, xp)
    elif arguments.transport == "rma":
        transport = OneSidedTransport(ranks.comm, ranks.timeout)
    else:
        # ChainerMN is slow to load, and needed for this transport only.
        from pipeline.chainermn import ChainerMNTransport

        transport = ChainerMNTransport(ranks.comm, ranks.timeout)
    transport.watch = ranks.watch
    return Runner(
        stages,
        start.stage_ranks,
        ranks.rank,
        transport,
        start.routes,
        ranks.title,
        _make_elsewhere(arguments),
        arguments.dtypes_over(len(start.stage_ranks) - 1),
    )


def _make_elsewhere(arguments: Arguments) -> HeldElsewhere | None:
    """Returns the store for microbatches between forward and backward, if wanted."""
    on_disk, in_half = arguments.hold_in != "memory", arguments.hold_dtype == HALF
    if not (on_disk or in_half):
        return None
    store: HeldStore | HeldInHalf | None = None
    if on_disk:
        store = HeldStore(directory_of(arguments.hold_in), arguments.timeout)
    if in_half:
        store = HeldInHalf(store)
    return HeldElsewhere(store, Leaving(rounds=in_half, others=on_disk))


def warn_of_gpu_products(device: chainer.backend.Device) -> None:
    """Warns on a GPU if products in bfloat16 are asked for, which a CPU has alone."""
    dtype = products_in_force()
    if device.xp is not np and dtype != FLOAT32:
        warn_user(
            f"products are computed in float32 on {device.name}, although {dtype} is"
            f" asked for: kernels compute it on a CPU only. For convolutions in TF32,"
            f" set chainer.config.use_cudnn_tensor_core = 'always'"
        )


def warn_of_early_draws(stage: Stage, ranks: Ranks) -> None:
    """Warns if a serial script draws other weights; called after reading x."""
    draws = stage.layers.early_draws
    if draws is None or ranks.rank != ranks.first or ranks.replica:
        return
    if (text := draws.warning()) is not None:
        warn_user(text)
