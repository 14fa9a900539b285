"""The costs of one layer: seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from divisible.layer_texts import title
from divisible.records import plain_number, plain_text

#: Times of a layer, of one microbatch.
SECONDS = ("forward", "backward_input", "backward_weight")
#: Sizes that grow with the number of samples.
SAMPLE_BYTES = (
    "output_bytes",
    "passing_bytes",
    "skip_bytes",
    "activation_bytes",
    "activation_saved_bytes",
    "output_saved_bytes",
    "boundary_output_bytes",
    "pending_bytes",
    "workspace_bytes",
)
#: Sizes that do not grow.
FIXED_BYTES = (
    "parameter_bytes",
    "optimizer_bytes",
    "streamable_bytes",
    "gathered_bytes",
    "prepared_bytes",
)
#: Sizes that are a part of another one.
PARTS = (
    ("passing_bytes", "output_bytes"),
    ("activation_saved_bytes", "activation_bytes"),
    ("output_saved_bytes", "output_bytes"),
    ("streamable_bytes", "parameter_bytes"),
    ("gathered_bytes", "streamable_bytes"),
)
_BYTES_OF_FLOAT32 = 4


@dataclass(frozen=True)
class LayerCost:
    """The costs of one layer for one microbatch.

    Attributes:
        forward: Seconds of its forward.
        backward_input: Seconds of the gradients of its input (I).
        backward_weight: Seconds of the gradients of its parameters (W), added to those
            of earlier microbatches.
        output_bytes: Bytes sent to later stages if the model is cut after the layer:
            its output, and values that skip connections carry past it.
        passing_bytes: The part of ``output_bytes`` that skip connections carry. A later
            stage receives it only if a layer there pops it.
        skip_bytes: Bytes that skip connections bring to the layer.
        activation_bytes: Bytes held from forward to backward because of the layer:
            arrays that its own functions retain, and its output where it or the next
            layer retains that. The input counts with the layer before.
        parameter_bytes: Bytes of the parameters; their gradients take as many. A
            parameter that several layers share counts with each, as every stage has a
            copy.
        optimizer_bytes: Bytes of the optimizer's state. Parameters of float16 add the
            sums of their gradients and the master weights, both in float32.
        boundary_output_bytes: Additional bytes held if a stage ends here: outputs that
            are not among the `activation_bytes`.
        pending_bytes: Bytes held between I and W.
        workspace_bytes: Bytes that it needs while it runs, at its peak, besides those
            held: what it allocates and frees again, and in a backward the gradients of
            its outputs and inputs.
        n_parameters: Elements of the parameters; 0 for as many as float32 has in
            ``parameter_bytes``.
        streamable_bytes: The part of ``parameter_bytes`` that can be on disk, by
            :func:`divisible.streaming.stream`.
        gathered_bytes: The part of ``streamable_bytes`` of which a microbatch needs
            some rows: embeddings.
        prepared_bytes: Bytes of weights in the order of the kernels, which are kept
            during a minibatch if there is room (:mod:`chainer_kernels`).
        takes_groups: Whether several microbatches may pass through as one: the layer
            carries no state, and its inputs and outputs have the samples along the
            first axis. ``False`` if that is not known.
        name: One line or more that describes the layer.
        activation_saved_bytes: The part of ``activation_bytes`` that is saved where
            activations wait in bfloat16 (``Pipeline(hold_dtype=)``): half of the arrays
            that are rounded.
        output_saved_bytes: The part of ``output_bytes`` that is saved in the same way,
            where they are inputs of a stage.
        place: The file and the line of a lambda, which has no name.
        stays_in_memory: Whether another library holds activations of the layer, such
            as PyTorch, so that they cannot wait on a disk.

    Raises:
        TypeError: If a value is not a number, or the name not a text.
        ValueError: If a value is negative, infinite, NaN or beyond 2**63, a part such
            as ``streamable_bytes`` is more than its whole, or all times are 0.
    """

    forward: float
    backward_input: float
    backward_weight: float
    output_bytes: int = 0
    passing_bytes: int = 0
    skip_bytes: int = 0
    activation_bytes: int = 0
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    boundary_output_bytes: int = 0
    pending_bytes: int = 0
    workspace_bytes: int = 0
    n_parameters: int = 0
    streamable_bytes: int = 0
    gathered_bytes: int = 0
    prepared_bytes: int = 0
    takes_groups: bool = False
    name: str = ""
    place: str = ""
    activation_saved_bytes: int = 0
    output_saved_bytes: int = 0
    stays_in_memory: bool = False

    def __post_init__(self) -> None:
        plain_text("name of a layer", self.name)
        plain_text("place of a layer", self.place)
        for name in (*SECONDS, *SAMPLE_BYTES, *FIXED_BYTES, "n_parameters"):
            what = f"{name} of a layer {self.title!r}"
            number = plain_number(what, getattr(self, name), "Measure again")
            object.__setattr__(self, name, number)
        for name in ("takes_groups", "stays_in_memory"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(
                    f"{name} of a layer {self.title!r} must be true or false, not"
                    f" {getattr(self, name)!r}"
                )
        for part, whole in PARTS:
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(
                    f"{part} of a layer {self.title!r} are {getattr(self, part)}, but"
                    f" {whole}, of which they are a part, {getattr(self, whole)}"
                )
        if not self.seconds > 0:
            raise ValueError(
                f"a layer {self.title!r} takes no time, neither forward nor backward."
                f" Measure again, on more samples if it is too fast for the clock, or"
                f" give it a small time."
            )

    @property
    def seconds(self) -> float:
        """Seconds forward and backward."""
        return self.forward + self.backward_input + self.backward_weight

    @property
    def n_gradients(self) -> float:
        """Elements that replicas exchange."""
        return self.n_parameters or self.parameter_bytes / _BYTES_OF_FLOAT32

    @property
    def title(self) -> str:
        """The name in a line, without inner layers; for a lambda its file and line."""
        return f"lambda in {self.place}" if self.place else title(self.name)
