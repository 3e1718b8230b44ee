"""Pure: how our clients name themselves to brokers (KIP-511), and the version, which pyproject.toml has from here."""

from typing import Final

__all__ = ["CLIENT_SOFTWARE", "VERSION"]

CLIENT_SOFTWARE: Final = "kafka-ds"
VERSION: Final = "0.1.0"
