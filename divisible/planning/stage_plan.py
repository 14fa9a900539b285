"""The costs that a plan expects of one stage."""

from __future__ import annotations

from dataclasses import dataclass

from divisible.records import plain_number


@dataclass(frozen=True)
class StagePlan:
    """The expected costs of a stage of a plan.

    Attributes:
        seconds: Seconds of one microbatch on its rank: forward, backward and
            recomputation.
        link_seconds: Seconds for which a message keeps the link before it busy.
        memory: Bytes at the peak.
        memory_limit: Bytes that its rank may use; ``None`` for any number.
        output_bytes: Bytes of a microbatch that it sends to the next stage; as many
            bytes of gradients come back.
        n_gradients: Elements that replicas exchange.

    Raises:
        TypeError: If a value is no number.
        ValueError: If one is negative or not finite, or ``seconds`` are 0.
    """

    seconds: float
    link_seconds: float
    memory: int
    memory_limit: float | None = None
    output_bytes: int = 0
    n_gradients: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            if value is not None or name != "memory_limit":
                number = plain_number(f"{name} of a stage", value, "Make the plan anew")
                object.__setattr__(self, name, number)
        if self.seconds == 0:
            raise ValueError("seconds of a stage are 0: it must take some time")
