"""Memory shared by broker and worker: who holds which bytes, and until when."""

import gc
import os
import random

import pytest

from kafka_ds.ipc.extents import LINE_BYTES, Extents
from kafka_ds.ipc.shared_memory import SLACK_BYTES, BrokerMemory, WorkerMemory


def test_gaps_join_again_in_whatever_order_they_come_back() -> None:
    lots = random.Random(5)
    size = 100 * LINE_BYTES
    for _ in range(50):
        extents, taken = Extents(size), dict[int, int]()
        for _ in range(200):
            if taken and lots.random() < 0.5:
                start = lots.choice(list(taken))
                extents.free(start, taken.pop(start))
                continue
            wanted = lots.randrange(1, 20 * LINE_BYTES)
            found = extents.allocate(wanted)
            if found is None:
                continue
            assert found % LINE_BYTES == 0
            assert found + wanted <= size
            for start, length in taken.items():
                assert found + wanted <= start or start + length <= found, "two have the same bytes"
            taken[found] = wanted
        for start, length in taken.items():
            extents.free(start, length)
        assert extents.allocate(size) == 0, "all of it is one gap again"
        assert extents.allocate(1) is None


def test_what_is_given_back_twice_is_our_fault() -> None:
    extents = Extents(4 * LINE_BYTES)
    start = extents.allocate(LINE_BYTES)
    assert start == 0
    extents.free(start, LINE_BYTES)
    with pytest.raises(AssertionError, match="double free"):
        extents.free(start, LINE_BYTES)
    assert Extents(0).allocate(1) is None


@pytest.fixture(params=["memory", "file"])
def both(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[BrokerMemory, WorkerMemory]:
    """The two ends, on Linux and elsewhere."""
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    broker = BrokerMemory(1 << 20)
    worker = WorkerMemory(os.dup(broker.fd))
    broker.close_fd()
    return broker, worker


def test_what_the_worker_puts_there_the_broker_sees(
    both: tuple[BrokerMemory, WorkerMemory],
) -> None:
    broker, worker = both
    found = worker.put([b"one", bytearray(b"two"), memoryview(b"three")])
    assert found is not None
    views, start = found
    assert [bytes(each) for each in views] == [b"one", b"two", b"three"]
    lease = worker.lease(views)
    seen = broker.view(lease, [[start, 3], [start + 6, 5]])
    assert [bytes(each) for each in seen] == [b"one", b"three"]
    assert seen[0].readonly, "it is the worker that writes"
    assert views[0].readonly, "and once"


def test_bytes_stay_as_long_as_any_view_of_them_at_either_end(
    both: tuple[BrokerMemory, WorkerMemory],
) -> None:
    broker, worker = both
    whole = (1 << 20) + SLACK_BYTES

    def is_free() -> bool:
        gc.collect()
        return worker.put([bytes(whole)]) is not None

    found = worker.put([b"kept", b"as well"])
    assert found is not None
    views, start = found
    assert not is_free()
    lease = worker.lease(views[:1])
    del found, views
    assert not is_free(), "it is leased"
    sent = broker.view(lease, [[start, 4]])
    tail = sent[0][2:]
    del sent
    gc.collect()
    assert broker.freed() == [], "half of it is not sent yet"
    assert bytes(tail) == b"pt"
    del tail
    gc.collect()
    assert broker.freed() == [lease]
    assert broker.freed() == []
    assert not is_free(), "the worker has not heard of it"
    worker.end([lease, 999])
    assert is_free()
    assert is_free(), "what nobody had a view of is free at once"


def test_where_no_room_is_nothing_is_put(both: tuple[BrokerMemory, WorkerMemory]) -> None:
    _, worker = both
    half = ((1 << 20) + SLACK_BYTES) // 2
    first, second = worker.put([bytes(half)]), worker.put([bytes(half)])
    assert first is not None
    assert second is not None
    assert worker.put([b"x"]) is None
    del first
    assert worker.put([b"x"]) is not None
