"""Shapes of messages that follow from the number of samples.

The messages of a channel are *static* if each axis of each array grows by the same
length with each sample, and all else stays::

    samples      2              3              5              n
    array 0      (2, 7)         (3, 7)         (5, 7)         (n, 7)
    array 1      (9,)           (9,)           (9,)           (9,)

Both ends of a channel find this from the same messages. From then on a message of
fewer samples than expected needs no description: the receiver finds the number of
samples from the bytes that have come (:class:`Room`)::

    expected     4 samples      112 bytes and 36 bytes
    come                         84 bytes and 36 bytes, so 3 samples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from divisible.communication.narrowing import n_bytes, on_wire
from divisible.communication.signatures import Signature, TensorSpec


class NotStaticError(Exception):
    """The messages of a channel do not follow from the number of samples."""


class StaticShapes:
    """The signature of a channel's messages for each number of samples.

    Args:
        seen: The signatures of messages by their numbers of samples, at least three,
            or none.

    Raises:
        NotStaticError: If they do not follow from the number of samples.

    Example:
        >>> from divisible.communication.signatures import TensorSpec
        >>> seen = {n: (TensorSpec((n, 7), "<f4", True),) for n in (2, 3, 5)}
        >>> shapes = StaticShapes(seen)
        >>> shapes.at(10)[0].shape
        (10, 7)
        >>> shapes.n_samples(shapes.at(4))
        4
        >>> print(shapes)
        (n, 7) float32
    """

    def __init__(self, seen: Mapping[int, Signature]) -> None:
        if not any(seen.values()):
            raise NotStaticError("no message was seen")
        (a, first), (b, second), *_ = seen.items()
        if len({len(specs) for specs in seen.values()}) > 1:
            raise NotStaticError("the number of arrays varies")
        self._first, self._n_first = first, a
        self._growth = [_growth(one, other, b - a) for one, other in zip(first, second)]
        self._known: dict[int, Signature] = {}
        for n, specs in seen.items():
            if self.at(n) != specs:
                raise NotStaticError(_difference(n, self.at(n), specs))
        self._place = next(
            (
                (number, axis)
                for number, growth in enumerate(self._growth)
                for axis, length in enumerate(growth)
                if length
            ),
            None,
        )

    @property
    def growing(self) -> int | None:
        """The first array that grows with the samples; ``None`` if none does."""
        return None if self._place is None else self._place[0]

    def at(self, n: int) -> Signature:
        """Returns the signature of messages of ``n`` samples."""
        found = self._known.get(n)
        if found is None:
            found = self._known[n] = tuple(
                spec
                if spec.shape is None
                else spec._replace(shape=self._shape(spec.shape, growth, n))
                for spec, growth in zip(self._first, self._growth)
            )
        return found

    def _shape(
        self, shape: Sequence[int], growth: Sequence[int], n: int
    ) -> tuple[int, ...]:
        more = n - self._n_first
        return tuple(length + more * by for length, by in zip(shape, growth))

    def n_samples(self, specs: Signature) -> int | None:
        """Returns the number of samples of messages with a signature.

        Returns:
            ``None`` if no number of samples has this signature, or all have.
        """
        if self._place is None or len(specs) != len(self._first):
            return None
        number, axis = self._place
        shape = specs[number].shape
        if shape is None or len(shape) <= axis:
            return None
        more = shape[axis] - self._first[number].shape[axis]
        n = self._n_first + more // self._growth[number][axis]
        return n if n > 0 and self.at(n) == specs else None

    def __str__(self) -> str:
        """Returns the shapes and dtypes of the arrays, for ``n`` samples."""
        texts = [
            "no gradient" if spec.shape is None else self._text(spec, growth)
            for spec, growth in zip(self._first, self._growth)
        ]
        return ", ".join(texts)

    def _text(self, spec: TensorSpec, growth: Sequence[int]) -> str:
        words = [
            _length(length - self._n_first * by, by)
            for length, by in zip(spec.shape, growth)
        ]
        shape = f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"
        _, dtype = on_wire(spec._replace(wire=""))
        return f"{shape} {dtype.name}"


class Room:
    """A place for messages of up to a number of samples.

    Args:
        shapes (StaticShapes): Shapes of the messages.
        agreed: Signature of a message that fills the place.
        most_bytes (int): The most bytes of an array.

    Attributes:
        piece (int or None): The array that tells the number of samples by its bytes,
            counted among arrays with bytes; ``None`` if only messages of ``agreed``
            fit.
        n_bytes (int): Bytes of this array in a message that fills the place.
    """

    def __init__(
        self, shapes: StaticShapes | None, agreed: Signature, most_bytes: int
    ) -> None:
        self.piece, self.n_bytes = None, 0
        self._agreed = agreed
        # Most messages are of few numbers of samples.
        self._held: dict[Signature, int] = {}
        self._told: dict[int, int] = {}
        n_most = None if shapes is None else shapes.n_samples(agreed)
        if n_most is None:
            return
        self._shapes, self._n_most = shapes, n_most
        sizes = _sizes(agreed)
        grows = shapes.growing
        first = next((size for size in sizes if size), 0)
        # A single byte stands for no samples.
        if max(sizes) > most_bytes or not sizes[grows] or first == 1:
            return
        self.piece = sum(size > 0 for size in sizes[:grows])
        self.n_bytes = sizes[grows]

    def holds(self, specs: Signature) -> int | None:
        """Returns the number of samples of a message, if it fits without a description.

        Args:
            specs: Signature of the message. Without tensors, the message has no
                samples.
        """
        if self.piece is None:
            # Without samples, nobody asks for gradients that are missing anyway.
            has_none = not specs and all(spec.shape is None for spec in self._agreed)
            return 0 if has_none else None
        if not specs:
            return 0
        n = self._held.get(specs)
        if n is None and (n := self._n_if_held(specs)) is not None:
            self._held[specs] = n
        return n

    def _n_if_held(self, specs: Signature) -> int | None:
        n = self._shapes.n_samples(specs)
        if n is None or n > self._n_most:
            return None
        mine, most = _sizes(specs), _sizes(self._agreed)
        if any(size > 0 and not mine[number] for number, size in enumerate(most)):
            return None
        first = next(size for size in mine if size)
        if first == 1 or self.n_samples(mine[self._shapes.growing]) != n:
            return None
        return n

    def n_samples(self, n_bytes: int) -> int:
        """Returns the number of samples of a message.

        Args:
            n_bytes (int): Bytes of the array that tells it.
        """
        if n_bytes not in self._told:
            self._told[n_bytes] = self._n_by_bytes(n_bytes)
        return self._told[n_bytes]

    def _n_by_bytes(self, n_bytes: int) -> int:
        # In 4 bits, two numbers of samples may have the same bytes. With the bytes of
        # the whole place, the message fills it.
        if n_bytes == self.n_bytes:
            return self._n_most
        low, high = 1, self._n_most
        while low < high:
            middle = (low + high) // 2
            if _sizes(self._shapes.at(middle))[self._shapes.growing] < n_bytes:
                low = middle + 1
            else:
                high = middle
        return low

    def specs(self, n: int) -> Signature:
        """Returns the signature of a message of ``n`` samples."""
        return self._shapes.at(n) if n else ()


def _growth(one: TensorSpec, other: TensorSpec, n: int) -> tuple[int, ...]:
    """Returns by how much each axis grows with a sample.

    Args:
        one: An array of some messages.
        other: This array in messages of ``n`` more samples.
        n: Number of samples.
    """
    if one.shape is None or other.shape is None:
        # A gradient that is missing only sometimes differs below.
        return ()
    return tuple((b - a) // n for a, b in zip(one.shape, other.shape))


def _difference(n: int, expected: Signature, specs: Signature) -> str:
    """Returns the reason why a signature is not the expected one."""
    pairs = zip(expected, specs)
    number, (one, other) = next(
        (i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]
    )
    if (one.shape is None) != (other.shape is None):
        return f"gradient {number} is missing for some samples only"
    for name in ("dtype", "requires_grad", "order", "wire", "key"):
        if getattr(one, name) != getattr(other, name):
            return f"array {number} varies in its {name}"
    return (
        f"array {number} has the shape {other.shape} for {n} samples, where fewer"
        f" samples let expect {one.shape}"
    )


def _sizes(specs: Signature) -> list[int]:
    """Returns the bytes of each array as it is sent; 0 for a missing gradient."""
    sizes = []
    for spec in specs:
        size = 0
        if spec.shape is not None and min(spec.shape, default=1) > 0:
            size = n_bytes(spec)
        sizes.append(size)
    return sizes


def _length(fixed: int, by: int) -> str:
    """Returns the length of an axis as a text.

    Example:
        >>> _length(0, 1), _length(3, 0), _length(2, 4)
        ('n', '3', '4n + 2')
    """
    if not by:
        return str(fixed)
    times = "n" if by == 1 else f"{by}n"
    if not fixed:
        return times
    return f"{times} {'+' if fixed > 0 else '-'} {abs(fixed)}"
