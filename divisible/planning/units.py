"""Numbers with units, in the form that people read and write."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER = r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*"


def format_bytes(value: float) -> str:
    """Returns a size as text.

    Example:
        >>> format_bytes(0), format_bytes(1536), format_bytes(3 * 2**30)
        ('0', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} B" if value else "0"
    return f"{value:.1f} {unit}"


def format_seconds(value: float) -> str:
    """Returns a time as text.

    Example:
        >>> format_seconds(0), format_seconds(0.00125), format_seconds(1234)
        ('0', '1.25 ms', '1234 s')
    """
    if value == 0:
        return "0"
    for unit in ("s", "ms", "us"):
        # A number that is rounded up to a whole unit is written in that unit.
        if abs(value) >= 0.9995 * _SECONDS[unit]:
            break
    value /= _SECONDS[unit]
    return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"


def count(n: int, what: str) -> str:
    """Returns a number of things as text.

    Example:
        >>> count(1, 'stage'), count(3, 'microbatch')
        ('1 stage', '3 microbatches')
    """
    if n == 1:
        return f"1 {what}"
    return f"{n} {what}{'es' if what.endswith('ch') else 's'}"


def parse_bytes(text: str) -> float:
    """Reads a size such as ``'8GiB'``, ``'500 MB'``, ``'4G'`` or a number of bytes.

    Raises:
        ValueError: If the text is not a size.

    Example:
        >>> parse_bytes('1.5KiB'), parse_bytes('2 MB')
        (1536.0, 2000000.0)
    """
    match = re.fullmatch(_NUMBER + r"([kmgt]?i?)b?", text.lower())
    units = {**_BYTES, **_BINARY}
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a size, such as 8GiB or 500MB")
    return float(match[1]) * units[match[2]]


def parse_rate(text: str) -> float:
    """Reads a bandwidth: bits such as ``'1Gbit/s'``, or bytes such as ``'100MB/s'``.

    Returns:
        Bytes per second.

    Raises:
        ValueError: If the text is not a bandwidth.

    Example:
        >>> parse_rate('1gbit'), parse_rate('100MB/s')
        (125000000.0, 100000000.0)
    """
    match = re.fullmatch(_NUMBER + r"([kmgt]?)bit(/s)?", text.lower())
    if match is not None:
        return float(match[1]) * _BYTES[match[2]] / 8
    # Some write bits with a small b, and would get eight times the bandwidth that they
    # mean.
    if re.search(r"[kmgtKMGT]i?b(/s)?$|bits?(/s)?$|bps$", text.strip()):
        raise ValueError(
            f"{text!r}: bits or bytes? Write 1Gbit/s, or 100MB/s with a large B"
        )
    try:
        return parse_bytes(re.sub(r"/s$", "", text.strip()))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a bandwidth, such as 1Gbit/s or 100MB/s"
        ) from None


def parse_seconds(text: str) -> float:
    """Reads a time such as ``'50us'``, ``'1.5 ms'`` or a number of seconds.

    Raises:
        ValueError: If the text is not a time.

    Example:
        >>> parse_seconds('2ms'), parse_seconds('0.5')
        (0.002, 0.5)
    """
    match = re.fullmatch(_NUMBER + r"(s|ms|us|µs|ns)?", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a time, such as 50us or 0.001")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def words_of_groups(weight_groups: int, stage_groups: Sequence[int]) -> list[str]:
    """Returns a text for each kind of groups of a plan."""
    words = []
    if weight_groups > 1:
        words.append(f"W in groups of {weight_groups}")
    if stage_groups:
        words.append(f"stages in groups of {':'.join(map(str, stage_groups))}")
    return words


def words_of_runs(runs: Sequence[tuple[int, int]]) -> str:
    """Returns runs of layers as a text.

    Args:
        runs: The first layer of each run, and the one behind its last.

    Example:
        >>> words_of_runs([(0, 1), (2, 5)])
        '0, 2..4'
    """
    return ", ".join(
        str(start) if end == start + 1 else f"{start}..{end - 1}" for start, end in runs
    )
