"""Consumers that read old offsets in sequence share the memory for what is prepared ahead."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from broker.worker.cache.chunks import BatchChunk
from broker.worker.cache.readers import READING_SECONDS, Readers
from broker.worker.delta.reader import ColdReader
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.batches import records
from kafka_ds.topic.names import AppIdKind, app_id
from tests.fakes.settings import tier_settings

CHUNK_BYTES = 1000
OFFSETS = 10
END = 10**6


def test_half_of_what_is_kept_is_shared_by_those_who_read_now() -> None:
    readers = Readers(1600)
    assert readers.share_bytes(0.0) == 400
    for each in range(8):
        readers.read(f"topic {each}", 0, 10, float(each))
    assert readers.share_bytes(8.0) == 100
    # Who reads on is one reader, and so are two at the same place.
    readers.read("topic 0", 10, 20, 8.0)
    readers.read("topic 0", 5, 20, 8.0)
    assert readers.share_bytes(8.0) == 100
    assert readers.share_bytes(4.0 + READING_SECONDS) == 160  # Of 1, 2 and 3 nothing was heard.
    assert readers.share_bytes(9.0 + READING_SECONDS) == 400
    assert Readers(0).share_bytes(0.0) == 1


class Tables:
    """Tables of one version, whose offsets all lie in the same two files, named like their topic."""

    def get(self, topic: str) -> Any:
        topic_id = topic.encode().ljust(16)
        file = SimpleNamespace(path=topic, vector_id="", min_offset=0, max_offset=END)
        snapshot = SimpleNamespace(
            topic_id=topic_id,
            txns={app_id(topic_id, 0, AppIdKind.HIGHEST_OFFSET): END},
            index=SimpleNamespace(
                find_next=lambda _, offset: [file, file] if offset <= END else []
            ),
            log_start=lambda _: 0,
            missing=lambda _: (),
            undecodable_to=lambda _: -1,
        )
        return SimpleNamespace(view=lambda fresh: nullcontext(snapshot))


@pytest.mark.parametrize("consumers", [1, 4, 8, 12])
def test_no_chunk_goes_before_it_is_read(consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers of different topics take turns: what is prepared for one does not evict another's."""
    nothing: Any = None
    settings = tier_settings(lake_reader_cache_bytes=24 * CHUNK_BYTES)
    cold = ColdReader(nothing, Tables(), nothing, settings)
    built: Counter[tuple[str, int]] = Counter()

    def rows(_: Any, files: Any, start_offset: int, **__: Any) -> tuple[Any, int]:
        built[files[0].path, start_offset] += 1
        return None, start_offset + OFFSETS - 1

    def make(_: Any, offset: int, last: int, *__: Any) -> BatchChunk:
        return BatchChunk(offset, (bytes(CHUNK_BYTES),), (last + 1,))

    monkeypatch.setattr(records, "read_records", rows)
    monkeypatch.setattr(cold.builder, "make", make)
    monkeypatch.setattr(cold, "prepare_ahead", cold.read_ahead)
    at = dict.fromkeys((f"topic {each}" for each in range(consumers)), 0)
    for turn in range(30):
        if turn == 5:
            built.clear()  # They know of each other by now.
        for topic, offset in at.items():
            topic_id = topic.encode().ljust(16)
            read = cold.read(
                TopicIdPartition(topic_id, topic, 0),
                offset,
                max_bytes=CHUNK_BYTES,
                committed_only=True,
            )
            at[topic] += OFFSETS * len(read.chunks)
    assert set(at.values()) == {30 * OFFSETS}
    assert max(built.values()) == 1
