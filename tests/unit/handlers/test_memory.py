"""Fetches beside consumers that do not read their answers: what lies here for those bounds what the others get."""

from pathlib import Path
from typing import Any

import pytest

from broker.replica.serving import fetch_manager as fetching
from tests.in_process import batch_of, in_process, values_of
from tests.loops import in_loop


@in_loop
async def test_answers_that_lie_here_unread_make_others_small(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "WAITING_BYTES_MAX", 3000)
    monkeypatch.setattr(fetching, "ANSWER_BYTES_MIN", 1)
    async with in_process(memory_path) as broker:
        await broker.create("t")
        for _ in range(6):
            await broker.produce("t", batch_of([b"v" * 400]))
        connections = broker.owner.server.connections
        slow: Any = object()
        counts = []
        for unsent_bytes in (0, 2000, 1 << 40, 0):
            connections.record_unsent(slow, unsent_bytes, unsent_bytes)
            data = await broker.fetch("t", 0)
            counts.append(len(values_of(data.records)))
        assert counts == [6, 2, 1, 6]
        connections.record_unsent(slow, 1 << 40, 1 << 40)
        connections.forget(slow)
        assert connections.unsent_bytes == 0
        # What is being read from the disk will lie here, too.
        with broker.node.fetch_manager.reading(2000):
            data = await broker.fetch("t", 0)
        assert len(values_of(data.records)) == 2
