"""The members that tests of groups start come to an end, whatever became of their broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.clients.group_members import MEMBERS, end_members
from tests.processes import running_broker
from tests.topics import create_topic


@pytest.mark.parametrize("client", MEMBERS)
def test_a_member_ends_without_its_broker(tmp_path: Path, topic: str, client: str) -> None:
    """Otherwise the thread of a failed test would run on during other tests, until the end of the run."""
    before = threading.active_count()
    with running_broker(tmp_path, {"offsets.topic.num.partitions": 1}) as broker:
        create_topic(broker.bootstrap, topic, partitions=1)
        MEMBERS[client](broker.bootstrap, topic, topic).has(1)
    end_members()
    assert threading.active_count() <= before
