"""Pure: human-readable sizes and counts."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size_bytes: int) -> str:
    """A size in the unit that fits it: `512 B`, `1.5 KiB`."""
    amount = float(size_bytes)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("a unit for every size")


def counted(count: int, noun: str) -> str:
    """`1 segment`, `2 segments`: the noun's plural ends in -s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
