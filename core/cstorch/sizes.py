"""Numbers of bytes, operations and seconds in words."""

from __future__ import annotations

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def size_text(count: float) -> str:
    """A number of bytes with a fitting unit."""
    return _with_unit(count, 1024, _BYTES)


def flops_text(count: float) -> str:
    """A number of floating-point operations with a fitting unit."""
    return _with_unit(count, 1000, _FLOPS)


def count_text(count: int, noun: str) -> str:
    """`1 program`, `1,200 programs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _with_unit(count: float, factor: int, units: tuple[str, ...]) -> str:
    unit = 0
    while count >= factor and unit < len(units) - 1:
        count, unit = count / factor, unit + 1
    return f"{count:.0f} {units[unit]}" if unit == 0 else f"{count:.1f} {units[unit]}"
