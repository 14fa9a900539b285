"""The parts of a pipeline that depend on where its layers lie.

They are made at the start, and made anew when layers have moved to other ranks::

    layout --> stages --> runner, over a transport
                 |------> ties          parameters that several stages share
                 '------> updates       whether optimizers treat them alike
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from divisible.communication.collectives import all_gather
from divisible.communication.transport import Transport
from divisible.streaming.held_store import HeldStore
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.hooks.global_hooks import GlobalHooks
from pipeline.hooks.update_agreement import UpdateAgreement
from pipeline.stages.held_elsewhere import HeldElsewhere
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage
from pipeline.start.agreement import Layout
from pipeline.start.arguments import Arguments
from pipeline.step.runner import Runner


class Parts(NamedTuple):
    """The parts of a pipeline that depend on where its layers lie.

    Attributes:
        stages: This rank's by their numbers in the pipeline.
        ties: Keeps parameters equal that several stages share, if any do.
        updates: Compares how the ranks' optimizers treat the model.
        runner: Runs schedules.
    """

    stages: dict[int, Stage]
    ties: TieExchange | None
    updates: UpdateAgreement
    runner: Runner

    @classmethod
    def of(
        cls,
        arguments: Arguments,
        loss: Loss,
        layout: Layout,
        ranks: Ranks,
        before: Parts | None = None,
    ) -> Parts:
        """Makes them; a call of all ranks.

        Args:
            arguments: Those of this rank.
            loss: Follows the last stage.
            layout: How the layers lie on the ranks.
            ranks: All of the pipeline.
            before: The parts that these take the place of, where the same stages had
                other layers. They are closed, but what they know of optimizers' hooks
                goes on.
        """
        stages = _make_stages(arguments, loss, layout, ranks)
        params = [p for stage in stages.values() for p in stage.layers.params()]
        streamed = [p for p in params if getattr(p, "is_streamed", False)]
        ranks.calls.streamed = streamed
        layers = {number: stage.layers for number, stage in stages.items()}
        if before is None:
            n_stages = len(layout.stage_ranks)
            hooks = GlobalHooks(layers, loss.links, n_stages, arguments.seed, ranks)
        else:
            before.close()
            hooks = before.updates.hooks
            hooks.forget_layers()
        return cls(
            stages,
            _make_ties(stages, layout, ranks),
            UpdateAgreement(layout.shared, layers, hooks, ranks),
            _make_runner(arguments, stages, layout, ranks),
        )

    @property
    def are_unsized(self) -> bool:
        """Whether a layer gets a size at its first call, which is still to come."""
        return any(stage.is_unsized for stage in self.stages.values())

    def reset_states(self, of_training: bool) -> None:
        """Lets layers begin anew that carry a state; see :meth:`.CarriedRows.reset`."""
        for stage in self.stages.values():
            stage.carried.reset(of_training)

    def close(self) -> None:
        """Frees what they need to exchange messages; a call of all ranks."""
        for each in (self.runner, self.ties, self.updates):
            if each is not None:
                each.close()


def _make_stages(
    arguments: Arguments, loss: Loss, layout: Layout, ranks: Ranks
) -> dict[int, Stage]:
    """Returns a rank's stages by their numbers in the pipeline."""
    gather = None
    if ranks.grid is not None:
        gather = functools.partial(
            all_gather,
            ranks.grid.data,
            timeout=arguments.timeout,
            purpose="to share what batch normalization has found",
        )
    numbers = [i for i, owner in enumerate(layout.stage_ranks) if owner == ranks.rank]
    last = len(layout.stage_ranks) - 1
    if last not in numbers:
        # Chainer's gradients begin as NaN, and here nothing else clears these.
        for param in loss.params():
            param.cleargrad()
    return {
        number: Stage(
            layers,
            loss if number == last else None,
            arguments.seed,
            arguments.deferred_batch_norm,
            ranks.replica * arguments.n_microbatches,
            gather,
        )
        for number, layers in zip(numbers, arguments.stages)
    }


def _make_ties(
    stages: Mapping[int, Stage], layout: Layout, ranks: Ranks
) -> TieExchange | None:
    """Returns what keeps parameters equal that several stages share, if any do."""
    if not layout.shared:
        return None
    layers = {number: stage.layers for number, stage in stages.items()}
    return TieExchange(
        layout.shared,
        layers,
        layout.stage_ranks,
        ranks.comm,
        ranks.timeout,
        ranks.watch,
        f"{layout.name} ties",
    )


def _make_runner(
    arguments: Arguments, stages: Mapping[int, Stage], layout: Layout, ranks: Ranks
) -> Runner:
    """Returns what runs schedules, over the transport asked for."""
    if arguments.transport == "mpi":
        xp = arguments.stages[0].device.xp
        transport = Transport(ranks.comm, ranks.timeout, xp, arguments.wire_dtype)
    else:
        # ChainerMN is slow to load, and needed for this transport only.
        from pipeline.chainermn import ChainerMNTransport

        transport = ChainerMNTransport(ranks.comm, ranks.timeout)
    transport.watch = ranks.watch
    return Runner(
        stages,
        layout.stage_ranks,
        ranks.rank,
        transport,
        layout.routes,
        ranks.title,
        _make_elsewhere(arguments),
    )


def _make_elsewhere(arguments: Arguments) -> HeldElsewhere | None:
    """Returns where microbatches are held between forward and backward."""
    if arguments.hold_in == "memory":
        return None
    return HeldElsewhere(HeldStore(arguments.hold_directory, arguments.timeout))
