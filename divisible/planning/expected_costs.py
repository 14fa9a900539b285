"""The costs that a plan expects: those of a stage, and of the exchange of gradients."""

from __future__ import annotations

from dataclasses import dataclass

from divisible.planning.units import format_bytes, format_seconds
from divisible.records import plain_number


@dataclass(frozen=True)
class StagePlan:
    """The expected costs of a stage of a plan.

    Attributes:
        seconds: Seconds of one microbatch on its rank: forward, backward and
            recomputation.
        link_seconds: Seconds for which a message keeps the link before the stage busy.
        memory: Bytes at the stage's peak.
        memory_limit: Bytes that the stage's rank may use; ``None`` for no limit.
        output_bytes: Bytes of a microbatch that the stage sends to the next one; as
            many bytes of gradients come back.
        n_gradients: Elements that replicas exchange.
        again_seconds: Seconds of ``seconds`` for layers whose forward runs again in
            their backward.
        freed_bytes: Bytes by which these layers lower ``memory``.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If one is negative or not finite, or ``seconds`` are 0.
    """

    seconds: float
    link_seconds: float
    memory: int
    memory_limit: float | None = None
    output_bytes: int = 0
    n_gradients: int = 0
    again_seconds: float = 0.0
    freed_bytes: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            if value is not None or name != "memory_limit":
                number = plain_number(
                    f"{name} of a stage", value, "Make the plan again"
                )
                object.__setattr__(self, name, number)
        if self.seconds == 0:
            raise ValueError("seconds of a stage are 0: it must take some time")


@dataclass(frozen=True)
class ExchangePlan:
    """The expected costs of exchanging gradients between replicas, in a step.

    Attributes:
        sent_bytes: Bytes that are sent by the rank that sends most.
        seconds: Seconds of the exchange on the rank that ends last.
        coding_seconds: Seconds that this rank computes meanwhile.
        hidden_seconds: Seconds of the exchange before the last backward of the step
            ends.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If one is negative or not finite.

    Example:
        >>> print(ExchangePlan(2**20, 0.25, 0.01, hidden_seconds=0.05))
        1.0 MiB from a rank, 250 ms with 10 ms of coding; 50 ms hidden, 200 ms not
    """

    sent_bytes: int
    seconds: float
    coding_seconds: float
    hidden_seconds: float

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            number = plain_number(f"{name} of exchange", value, "Make the plan again")
            object.__setattr__(self, name, number)

    @property
    def exposed_seconds(self) -> float:
        """Seconds of the exchange after the last backward of the step."""
        return self.seconds - self.hidden_seconds

    def __str__(self) -> str:
        sent = format_bytes(self.sent_bytes)
        whole, coding = map(format_seconds, (self.seconds, self.coding_seconds))
        hidden = format_seconds(self.hidden_seconds)
        exposed = format_seconds(self.exposed_seconds)
        return (
            f"{sent} from a rank, {whole} with {coding} of coding; {hidden} hidden,"
            f" {exposed} not"
        )
