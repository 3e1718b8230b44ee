"""Shell: which PySpark source and sink need."""

from __future__ import annotations

from typing import Final

__all__ = ["LEAST", "check_pyspark"]

LEAST: Final = (4, 1)
_NEEDED: Final = f"kafka-ds needs PySpark {LEAST[0]}.{LEAST[1]} or newer"


def check_pyspark() -> None:
    """Refuse a PySpark that lacks what source and sink are made of.

    Raises:
        ImportError: it is older than `LEAST`, or not there; the message says which.
    """
    try:
        from pyspark import __version__ as version
    except ImportError:
        raise ImportError(
            f"{_NEEDED}, and none is installed: pip install 'kafka-ds[spark]'"
        ) from None
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST:
        raise ImportError(f"{_NEEDED}, this is {version}")
