"""Which topics take dead letters, what a dead letter has, and how records are found to be copied (KIP-1191)."""

from __future__ import annotations

import pytest

from broker.share import dead_letters
from broker.share.dead_letters import DeadLetter, SourcePartition, batch_of, check_topic, copies
from kafka_ds.process.settings import ConfigError
from kafka_ds.records.batch import Codec, Record, build_batch, read_records

SOURCE = SourcePartition("g", "orders", 3)


@pytest.mark.parametrize(
    ("topic", "is_enabled", "may_create", "why"),
    [
        ("dlq.a", True, False, None),
        ("dlq.a", None, True, None),
        ("dlq.a", None, False, "does not exist"),
        ("dlq.a", False, True, "errors.deadletterqueue.group.enable of dlq.a is false"),
        ("a", True, True, "does not begin with errors.deadletterqueue.topic.name.prefix=dlq."),
        ("__share_group_state", True, True, "internal"),
        ("", None, True, "empty"),
    ],
)
def test_topics(topic: str, is_enabled: bool | None, may_create: bool, why: str | None) -> None:
    def check() -> None:
        check_topic(topic, prefix="dlq.", is_enabled=is_enabled, may_create=may_create)

    if why is None:
        check()
        return
    with pytest.raises(ConfigError, match=why):
        check()


def test_a_dead_letter_says_what_it_is_of() -> None:
    original = Record(7, 1, b"k", b"v", [(b"h", None)])
    letters = [DeadLetter(7, 1, True), DeadLetter(9, 5, False)]
    batch = batch_of(letters, {7: original}, SOURCE, now_ms=44, bytes_max=10_000)
    assert (batch.letters, batch.without) == (2, None)
    first, second = read_records(batch.data)
    assert (first.key, first.value, first.timestamp) == (b"k", b"v", 44)
    assert list(first.headers) == [
        (b"h", None),
        (b"__dlq.errors.topic", b"orders"),
        (b"__dlq.errors.partition", b"3"),
        (b"__dlq.errors.offset", b"7"),
        (b"__dlq.errors.group", b"g"),
        (b"__dlq.errors.delivery.count", b"1"),
        (b"__dlq.errors.message", b"Offset rejected by client."),
    ]
    assert (second.key, second.value) == (None, None)
    assert dict(second.headers)[b"__dlq.errors.message"] == (
        b"Offset delivery count exceeded the threshold."
    )


def test_a_batch_has_as_many_as_it_may_and_one_at_least() -> None:
    letters = [DeadLetter(offset, 1, True) for offset in range(100)]
    found = {offset: Record(offset, 1, None, bytes(1_000)) for offset in range(100)}
    batch = batch_of(letters, found, SOURCE, now_ms=1, bytes_max=20_000)
    assert 10 < batch.letters < 20
    assert len(batch.data) <= 20_000
    assert batch_of(letters, found, SOURCE, now_ms=1, bytes_max=10).letters == 1


def test_a_record_that_is_too_large_with_the_headers_is_not_copied() -> None:
    letters = [DeadLetter(offset, 1, True) for offset in range(2)]
    found = {0: Record(0, 1, None, bytes(1_000))}
    exact = len(batch_of(letters[:1], found, SOURCE, now_ms=1, bytes_max=10_000).data)
    fits = batch_of(letters, found, SOURCE, now_ms=1, bytes_max=exact)
    assert (len(fits.data), fits.letters, fits.without) == (exact, 1, None)
    without = batch_of(letters, found, SOURCE, now_ms=1, bytes_max=exact - 1)
    assert (without.letters, without.without) == (2, 0)
    assert [each.value for each in read_records(without.data)] == [None, None]


def test_records_are_found_among_the_batches_that_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batch(first: int, *values: bytes, codec: int = Codec.NONE) -> bytes:
        records = [Record(first + i, 1, None, value) for i, value in enumerate(values)]
        return build_batch(records, codec=codec)

    letters = [DeadLetter(offset, 1, True) for offset in (2, 5, 6, 30)]
    data = batch(0, b"a", b"b", b"c") + batch(3, b"d") + batch(5, b"e", codec=Codec.ZSTD)
    data += batch(6, bytes(2_000), codec=Codec.ZSTD) + batch(7, b"f")
    monkeypatch.setattr(dead_letters, "DECOMPRESSED_BYTES_MAX", 1_000)
    found, end = copies(memoryview(data), letters)
    assert {offset: record.value for offset, record in found.items()} == {2: b"c", 5: b"e"}
    assert end == 8
    assert copies(memoryview(b""), letters) == ({}, 0)
