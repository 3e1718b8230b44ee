"""One broker that has much to keep and nothing to do: its start, its memory, its CPU."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetCommitRequest,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client
from tests.integration.raw_client import RawClient
from tests.processes import wait_until
from tests.topics import create_topic

PARTITIONS = 5_000
CONNECTIONS = 2_000
GROUPS = 500
TOPIC = "many"
# What follows a start (checkpoints, the worker's first look at the lake) is not what it is to be idle.
SETTLE_S = 20.0
IDLE_S = 60.0
START_S_MAX, MEMORY_MIB_MAX, IDLE_PERCENT_MAX = 5.0, 500.0, 3.0


def _commit(group: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=group % PARTITIONS, committed_offset=0, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return OffsetCommitRequest(group_id=f"group-{group}", member_id="", topics=[topic])


def _commit_all(bootstrap: str) -> None:
    """An offset for each group: from then on the coordinator keeps it."""
    with RawClient(bootstrap) as asking:
        # Who asks for the coordinator has its topic made.
        asking.ask(FindCoordinatorRequest(key="group-0", key_type=0), 2)
        for group in range(GROUPS):
            request = _commit(group)

            def is_done(request: OffsetCommitRequest = request) -> bool:
                answer = asking.ask(request, 8)
                # It may be loading yet.
                code: int = answer.topics[0].partitions[0].error_code
                return code == ErrorCode.NONE

            wait_until("a coordinator", is_done, timeout_s=120, every_s=0.05)


def _connect(bootstrap: str) -> RawClient:
    """A client that has said what it wants to know at its start, and then says nothing."""
    connected = RawClient(bootstrap)
    connected.ask(ApiVersionsRequest(), 2)
    connected.ask(MetadataRequest(topics=[MetadataRequestTopic(name="small")]), 5)
    return connected


def scale(folder: Path, report: Report, runs: int) -> None:
    """Partitions, idle connections and groups on one broker, tiering on; memory is the broker's and its worker's."""
    settings = {"connections.max.idle.ms": 3_600_000}
    side = OurSide(folder, settings)
    starts, memory, idle = [], [], []
    background = 0.0
    try:
        side.launch()
        create_topic(side.bootstrap, "small", partitions=1)
        create_topic(side.bootstrap, TOPIC, partitions=PARTITIONS)
        _commit_all(side.bootstrap)
        for _ in range(runs):
            side.stop()
            began = time.time()
            side.launch()
            starts.append(client("first", side, "first")["at"] - began)
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    stack.enter_context(_connect(side.bootstrap))
                time.sleep(SETTLE_S)
                with machine.watching(side.pids()) as use:
                    time.sleep(IDLE_S)
                idle.append(100 * use.cpu_s / use.wall_s)
                memory.append(machine.resident_mib(side.pids()))
                background = max(background, use.background_load)
    finally:
        side.stop()
        shutil.rmtree(folder, ignore_errors=True)
    what = partial(Figure, background_load=background)
    many = f"{PARTITIONS} partitions"
    report.add(what(name=f"{many}: start to a record", unit="s", ours=starts, at_most=START_S_MAX))
    rest = f"{many}, {CONNECTIONS} connections, {GROUPS} groups"
    report.add(what(name=f"{rest}: memory", unit="MiB", ours=memory, at_most=MEMORY_MIB_MAX))
    report.add(what(name=f"{rest}: idle CPU", unit="%", ours=idle, at_most=IDLE_PERCENT_MAX))
