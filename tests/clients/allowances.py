"""What clients ask for in vain, from allow_list.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("allow_list.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPassing:
    """A test of this folder that is expected to fail."""

    test: str
    since: date
    reason: str


def _content() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def not_passing() -> list[NotPassing]:
    return [NotPassing(**each) for each in _content().get("not_passing", ())]


def versions() -> dict[str, str]:
    """The version of each client that the scenarios were taken from."""
    found: dict[str, str] = _content()["clients"]
    return found


def left_out() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _content()["left_out"]
    return found
