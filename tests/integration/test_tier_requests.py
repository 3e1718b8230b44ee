"""The worker's requests to the store: in proportion to what is copied, and none if nothing is copied."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.worker import service
from broker.worker.rpc import FINISHED, CopyRequest, ReadTieredState
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.fakes.settings import tier_settings
from tests.fakes.store import MemoryStore
from tests.integration.tier_segments import TOPIC, TOPIC_ID, copy_range, copy_request, segment

REQUESTS = ("put_if_absent", "put_durable", "create", "read", "read_range", "list", "size")
RECORDS = 5


class Asked:
    """A worker's service over a store that counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self._folder = folder
        monkeypatch.setattr(service, "open_lake", lambda uri, **_: self.store)
        settings = tier_settings(log_dirs=(), lake_copy_threads=1)
        self.service = service.Service(settings, CrashPoints())

    def copy(self, number: int, *, partitions: int = 1) -> Mapping[str, int]:
        """The requests of one copy, the so-many-th of these partitions."""
        start = number * RECORDS
        ranges = [
            copy_range(
                segment(self._folder / f"{each}-{number}.log", start, RECORDS),
                start,
                start + RECORDS - 1,
                partition=each,
            )
            for each in range(partitions)
        ]
        copied = copy_request(ranges)
        answer = self.asking(lambda: self.service.writing()[CopyRequest](copied))
        assert [each.outcome for each in answer.partitions] == [FINISHED] * partitions
        return self.requests

    def asking(self, what: Callable[[], Any]) -> Any:
        self.store.calls.clear()
        return what()

    @property
    def requests(self) -> Mapping[str, int]:
        """The requests since it was asked, by the folder below the lake."""
        paths = (path for name, path in self.store.calls if name in REQUESTS)
        return Counter("log" if "/_delta_log" in path else "files" for path in paths)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Asked]:
    return lambda: Asked(tmp_path / secrets.token_hex(4), monkeypatch)


def test_how_often_a_copy_looks_into_logs_does_not_grow_with_its_partitions(
    asked: Callable[[], Asked],
) -> None:
    one, many = asked(), asked()
    one.copy(0)
    many.copy(0, partitions=20)
    of_one, of_many = one.copy(1), many.copy(1, partitions=20)
    assert of_many["log"] == of_one["log"]
    # A file of rows and one of residue of each partition, each seen once more; and the events of the two steps.
    assert of_many["files"] == 4 * 20 + 2


def test_many_partitions_of_a_topic_are_asked_about_with_the_requests_of_one(
    asked: Callable[[], Asked],
) -> None:
    worker = asked()
    worker.copy(0, partitions=20)
    places = [TopicIdPartition(TOPIC_ID, TOPIC, each) for each in range(20)]
    state = worker.service.reading()[ReadTieredState]
    worker.asking(lambda: state(ReadTieredState(partitions=places[:1])))
    of_one = worker.requests
    answer = worker.asking(lambda: state(ReadTieredState(partitions=places)))
    assert [each.highest_offset_in_remote_storage for each in answer] == [RECORDS - 1] * 20
    assert worker.requests == of_one


def test_after_a_copy_nothing_is_asked_for_the_upkeep_of_tables_that_need_none(
    asked: Callable[[], Asked],
) -> None:
    worker = asked()
    worker.copy(0)
    worker.service.afterwards()
    worker.copy(1)
    worker.asking(worker.service.afterwards)
    assert worker.requests == {}
