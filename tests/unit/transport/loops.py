"""What several tests use: HOST, TIMEOUT_S."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.commands import loop_factory

HOST = "127.0.0.1"


TIMEOUT_S = 120.0


LOOPS: dict[str, Callable[[], Any]] = {
    "asyncio": asyncio.new_event_loop,
    "broker": lambda: (loop_factory() or asyncio.new_event_loop)(),
}
