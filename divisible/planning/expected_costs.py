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


@dataclass(frozen=True)
class ExchangePlan:
    """The expected costs of exchanging gradients between replicas, in a step.

    Attributes:
        sent_bytes: What the rank sends that sends most.
        seconds: How long it takes on the rank that ends last.
        coding_seconds: How long that rank computes meanwhile.
        hidden_seconds: How much of it lies before the last backward of the step ends.

    Raises:
        TypeError: If a value is no number.
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
            number = plain_number(f"{name} of exchange", value, "Make the plan anew")
            object.__setattr__(self, name, number)

    @property
    def exposed_seconds(self) -> float:
        """How long it goes on after the last backward of the step."""
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
