"""Features for which minibatches do not overlap.

They need the whole model between two minibatches::

    feature              what an update, or the next minibatch, waits for
    replicas             gradients of other replicas
    ties                 gradients of other stages, for one parameter
    streamed layers      gradients that are written, or used, as they are computed
    carry_state          the number of samples that states belong to
    loss_scale           whether a gradient of some stage is not finite
    GradientClipping     the norm of all gradients
    Rebalance            the times of all stages

With one of these, ``overlap_minibatches='auto'`` waits at the end of each step, and
``True`` refuses the feature. ``True`` accepts ``loss_scale`` and ``GradientClipping``
if :mod:`pipeline.hooks.late_confirmation` can confirm their updates later.

A ``lossfun`` that counts samples itself makes no step wait. Gradients need the number
of these samples. The rank of the last stage knows it when it has computed all losses,
and sends it to all ranks then. Other ranks end their parts of the step later.

Three kinds of steps wait with ``True`` as well:

* steps in which layers report values;
* the trials of ``schedule='auto'`` and ``weight_groups='auto'``;
* steps of one rank, which are complete at once.
"""

from __future__ import annotations

from pipeline.start.agreement import Start
from pipeline.start.arguments import waiting_features

#: The value of ``overlap_minibatches`` by which minibatches overlap where they can.
AUTO = "auto"
_NEEDS = {
    "replicas": "exchange gradients",
    "ties": "add up gradients of several stages",
    "streamed layers": "treat gradients while they are computed",
    "carry_state": "passes states on from one minibatch to the next",
    "loss_scale": "skips an update if a gradient of any stage is not finite",
    "GradientClipping": "needs the norm of all stages' gradients",
    "Rebalance": "measures whole steps, and moves layers between them",
}


class Overlap:
    """Whether minibatches overlap on this rank, and the feature that prevents it.

    Args:
        wish (bool or str): Argument ``overlap_minibatches`` of the pipeline.

    Attributes:
        feature (str): The feature, a word; empty if minibatches overlap.
    """

    def __init__(self, wish: bool | str) -> None:
        self._wish = wish
        self.feature = "" if wish else "overlap_minibatches=False"

    def check(self, start: Start, n_replicas: int) -> None:
        """Searches for features that are known at the start, or after a move of layers.

        Args:
            start (Start): The agreed arguments.
            n_replicas (int): Number of replicas.

        Raises:
            ValueError: With ``overlap_minibatches=True``, if there is one.
        """
        found = {
            "replicas": n_replicas > 1,
            "ties": bool(start.shared),
            "streamed layers": bool(start.streamed),
            **waiting_features(
                start.arguments.stages[0],
                # With True, updates are confirmed later.
                None if self._wish is True else start.arguments.loss_scale,
            ),
        }
        for feature, is_there in found.items():
            if is_there:
                self.wait_for(feature)
        if len({*start.stage_ranks}) == 1:
            self.feature = self.feature or "one rank"

    def wait_for(self, feature: str, obstacle: str = "") -> None:
        """Makes steps wait from now on.

        Args:
            feature (str): The feature that needs it, one of those of this module.
            obstacle (str): Reason why its updates cannot be confirmed late.

        Raises:
            ValueError: With ``overlap_minibatches=True``.
        """
        if self._wish is True:
            raise ValueError(
                f"overlap_minibatches=True does not go together with {feature}"
                f"{obstacle and f' and {obstacle}'}:"
                f" {feature} {_NEEDS[feature]}, so a stage must wait for the others"
                f" before it updates. With overlap_minibatches='auto' it does"
            )
        self.feature = self.feature or feature
