"""Several brokers' metadata over one folder: claims that race, controllers that are deposed, brokers that follow."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.controller.brokers import HeartbeatReply
from broker.controller.controller import Controller, ControllerResult
from broker.controller.metadata_driver import RecentCommits
from broker.membership.lifecycle import Lifecycle
from broker.metadata.events import PartitionChanged, decode_events, encode_events
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.actions import LOG_RETENTION_MS_MIN
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import identity_of
from tests.fakes.network import Respondent
from tests.fakes.store import ALWAYS, FolderStore
from tests.loops import in_loop, pass_time, until
from tests.unit.controller.metadata_broker import Broker, events_of, stop, versions


def durable(folder: Path) -> MetadataImage:
    return MetadataLog(LocalStore(str(folder))).load()


@in_loop
async def test_of_brokers_that_claim_together_one_wins(memory_path: Path) -> None:
    brokers = [Broker(memory_path, node_id=i) for i in range(1, 6)]
    won = await asyncio.gather(*(broker.start() for broker in brokers))
    assert won.count(True) == 1
    winner = brokers[won.index(True)]
    assert durable(memory_path).controller_id == winner.node_id
    for broker in brokers:
        assert broker.driver.is_active is (broker is winner)
        # Who lost knows who won.
        assert broker.image.controller_id == winner.node_id
        assert broker.image.controller_epoch == 1
    await stop(*brokers)


@in_loop
async def test_others_hear_of_a_commit_before_it_has_taken_effect_here(memory_path: Path) -> None:
    """What hundreds of partitions ask of this broker takes its time, and their new leaders are elsewhere."""
    broker = Broker(memory_path)
    await broker.start()
    before, done = broker.image.version, asyncio.Event()

    async def apply(_: Any) -> None:
        await done.wait()

    await broker.publish_to(apply)
    hearing = asyncio.create_task(broker.driver.wait_for_change(60))
    await asyncio.sleep(0)
    creating = asyncio.create_task(broker.create("t"))
    async with asyncio.timeout(120):
        await hearing
    assert broker.driver.entries_after(before, 1 << 20)
    assert not creating.done()
    done.set()
    await creating
    await stop(broker)


def lifecycle_of(
    broker: Broker,
    send: Callable[..., Awaitable[Any]],
    cordoned_directory_ids: Sequence[bytes] = (),
    **settings: int,
) -> Lifecycle:
    """That of a registered broker without logs; `send` asks the controller."""
    parts: Any = SimpleNamespace(
        directory_ids={},
        cordoned_directory_ids=list(cordoned_directory_ids),
        take_refused=dict,
        keep_online=lambda directory_ids: None,
        send=send,
    )
    nobody: Any = None
    incarnation_id = broker.image.brokers[broker.node_id].incarnation_id
    return Lifecycle(
        identity_of(broker.node_id, incarnation_id=incarnation_id),
        BrokerConfig(**settings),
        broker.driver,
        parts,
        nobody,
        parts,
    )


@in_loop
async def test_a_heartbeat_tells_of_a_commit_when_it_has_taken_effect(memory_path: Path) -> None:
    """A broker that stops goes when the others lead what it led, and not when they have only read so."""
    broker = Broker(memory_path)
    alive = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False)
    controller = Respondent(lambda _: alive)

    def known() -> list[int]:
        return [each.current_metadata_offset for each in controller.asked]

    await broker.start()
    lifecycle = lifecycle_of(
        broker,
        controller.send,
        broker_heartbeat_interval_ms=3_600_000,
        broker_session_timeout_ms=60_000,
    )
    before, begun, done = broker.image.version, asyncio.Event(), asyncio.Event()

    async def apply(_: Any) -> None:
        begun.set()
        await done.wait()

    await broker.publish_to(apply)
    creating = asyncio.create_task(broker.create("t"))
    async with asyncio.timeout(60):
        await begun.wait()
        assert broker.image.version > before
        living = asyncio.create_task(lifecycle.run())
        # Who is behind does not wait for the next interval.
        await until(lambda: len(known()) >= 3)
        assert set(known()) == {before}
        done.set()
        await creating
        await until(lambda: known()[-1] != before)
    assert known()[-1] == broker.image.version
    living.cancel()
    await stop(broker)


@in_loop
async def test_who_meant_to_depose_another_one_does_not_claim(memory_path: Path) -> None:
    first, second, third = (Broker(memory_path, node_id=i) for i in (1, 2, 3))
    await first.start()
    await third.driver.catch_up()
    assert await third.start(dead=1)
    # The second one had nobody in mind, and the log has had two controllers since.
    assert not await second.start()
    assert durable(memory_path).controller_epoch == 2
    assert third.driver.is_active
    await stop(first, second, third)


@in_loop
async def test_a_controller_that_came_since_the_last_was_judged_is_left_alone(
    memory_path: Path,
) -> None:
    first, second, third = (Broker(memory_path, node_id=i) for i in (1, 2, 3))
    await first.start()
    await third.driver.catch_up()
    judged = third.image.controller_epoch
    await second.driver.catch_up()
    assert await second.start(dead=1)
    # The third one hears of it after it has made up its mind.
    await third.driver.catch_up()
    assert not await third.start(dead=1, judged=judged)
    assert await second.driver.confirm()
    await stop(first, second, third)


@in_loop
async def test_a_claim_on_the_dead_fences_it_and_moves_its_leaders_at_once(
    memory_path: Path,
) -> None:
    first, second = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    await first.start()
    await first.create("t")
    await second.driver.catch_up()
    before = len(versions(memory_path))
    assert await second.start(dead=1)
    assert len(versions(memory_path)) == before + 1
    image = durable(memory_path)
    assert image.brokers[1].fenced and not image.brokers[2].fenced
    assert image.topics["t"].partitions[0].leader == -1
    kinds = [event["type"] for event in events_of(versions(memory_path)[-1])]
    assert kinds[0] == "ControllerChange"
    assert {"FenceBroker", "RegisterBroker", "PartitionChanged"} < set(kinds)
    await stop(first, second)


@in_loop
async def test_an_idle_controller_finds_out_that_it_is_none_any_more(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    await old.start()
    assert await old.driver.confirm()
    await new.driver.catch_up()
    await new.start()
    await new.create("t")
    assert not await old.driver.confirm()
    assert sum("Resigned as controller" in each for each in caplog.messages) == 1
    # It has taken in what it met.
    assert "t" in old.image.topics
    assert old.image.controller_id == 2
    with pytest.raises(KafkaError) as refused:
        await old.create("u")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert "u" not in durable(memory_path).topics
    await stop(old, new)


@in_loop
async def test_who_slept_past_the_clean_up_of_the_log_stops_and_decides_nothing_more(
    memory_path: Path,
) -> None:
    """A start reads the last snapshot; who went on would follow nobody, and stand for controller for ever."""
    failed: list[BaseException] = []
    clock = ManualClock()
    old = Broker(memory_path, node_id=1, clock=clock, failed=failed.append)
    new = Broker(memory_path, node_id=2)
    await old.start()
    known = len(versions(memory_path))
    await new.driver.catch_up()
    await new.start()
    await new.create("t")
    versions(memory_path)[known].unlink()
    clock.ms += LOG_RETENTION_MS_MIN  # What it knew of the log is too old to go by.
    for look in (old.driver.confirm, old.driver.catch_up):
        with pytest.raises(OSError, match="restart this broker"):
            await look()
        assert not old.driver.is_active
    assert [str(each).rpartition("; ")[2] for each in failed] == ["restart this broker"]
    await stop(old, new)


@in_loop
async def test_all_that_a_deposed_controller_had_pending_comes_to_nothing(
    memory_path: Path,
) -> None:
    old, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    await old.start()
    await new.driver.catch_up()
    await new.start()
    answers = await asyncio.gather(
        *(old.create(f"t{i}") for i in range(20)), return_exceptions=True
    )
    assert all(isinstance(a, KafkaError) and a.code is ErrorCode.NOT_CONTROLLER for a in answers)
    assert not durable(memory_path).topics
    # Deciding again later needs a claim.
    await old.driver.catch_up()
    assert await old.start()
    await old.create("t0")
    assert list(durable(memory_path).topics) == ["t0"]
    await stop(old, new)


@in_loop
async def test_a_decision_whose_answer_was_lost_is_known_to_whoever_claims(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", ())
    monkeypatch.setattr("broker.controller.metadata_driver.FATE_RETRY_SECONDS", 0.3)
    store = FolderStore(memory_path)
    old, new = Broker(memory_path, node_id=1, store=store), Broker(memory_path, node_id=2)
    await old.start()
    await new.driver.catch_up()
    store.lose(OSError)
    creating = asyncio.ensure_future(old.create("t"))
    await until(lambda: "t" in durable(memory_path).topics)
    assert await new.start()
    assert "t" in new.image.topics
    # It was durable before the claim, and so it is answered as done.
    (result,) = await creating
    assert result.error == ErrorCode.NONE
    assert not await old.driver.confirm()
    await stop(old, new)


@in_loop
async def test_while_the_store_is_away_decisions_wait_and_heartbeats_do_not(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", ())
    monkeypatch.setattr("broker.controller.metadata_driver.FATE_RETRY_SECONDS", 0.01)
    store = FolderStore(memory_path)
    broker, other = Broker(memory_path, store=store), Broker(memory_path, node_id=2, store=store)
    await broker.start()
    store.refuse(OSError("away"), calls="put_if_absent read size", path="*", times=ALWAYS)
    first = asyncio.ensure_future(broker.create("a"))
    await until(lambda: broker.driver.fates_unknown)
    second = asyncio.ensure_future(broker.create("b"))
    await asyncio.sleep(0)

    async def beat() -> HeartbeatReply:
        return await broker.driver.decide(
            lambda c: c.heartbeat(
                1,
                broker.driver.broker_epoch,
                metadata_version=broker.image.version,
                want_fence=False,
                want_shut_down=False,
                now_ms=0,
            ),
            at_once=True,
        )

    assert not (await beat()).is_fenced
    with pytest.raises(OSError, match="away"):
        await other.start()
    assert not first.done() and not second.done()
    assert broker.driver.pending == 1
    monkeypatch.setattr("broker.controller.metadata_driver.PENDING_MAX", 1)
    with pytest.raises(KafkaError) as refused:
        await broker.create("c")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not (await beat()).is_fenced, "who lives is heard, also where nothing more can wait"
    store.mend()
    assert [result.error for (result,) in (await first, await second)] == [ErrorCode.NONE] * 2
    assert sorted(durable(memory_path).topics) == ["a", "b"]
    await stop(broker, other)


@in_loop
async def test_a_broker_whose_heartbeat_waits_for_the_store_is_not_fenced(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory has become full, failed or cordoned meanwhile."""
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", ())
    store = FolderStore(memory_path)
    broker = Broker(memory_path, store=store)
    await broker.start()
    controller, clock = broker.driver.controller, ManualClock(0)
    controller.begin_sessions(0)
    store.refuse(OSError("away"), calls="put_if_absent read size", path="*", times=ALWAYS)

    async def send(request: BrokerHeartbeatRequest, *, timeout_ms: int) -> BrokerHeartbeatResponse:
        def decide(controller: Controller) -> ControllerResult[HeartbeatReply]:
            return controller.heartbeat(
                1,
                request.broker_epoch,
                metadata_version=request.current_metadata_offset,
                want_fence=False,
                want_shut_down=False,
                cordoned_log_dirs=request.cordoned_log_dirs,
                now_ms=clock.monotonic_ms(),
            )

        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await broker.driver.decide(decide, at_once=True)
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None
        return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False)

    lifecycle = lifecycle_of(broker, send, cordoned_directory_ids=[bytes([1]) * 16])
    living = asyncio.create_task(lifecycle.run())
    for _ in range(20):
        await pass_time(1)
        clock.ms += 1_000
        assert not controller.expire_sessions(clock.monotonic_ms()).events
    assert broker.image.brokers[1].cordoned_log_dirs == (), "it waits"
    living.cancel()
    store.mend()
    await stop(broker)


@pytest.mark.parametrize("lands", [False, True])
@in_loop
async def test_who_does_not_hear_of_its_claim_follows_whoever_decides(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """It alone has lost the store, and would lead by old decisions for as long as that lasts."""
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", ())
    store = FolderStore(memory_path)
    gone, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    cut_off = Broker(memory_path, node_id=3, store=store)
    await gone.start()
    await cut_off.driver.catch_up()
    known = cut_off.image.version
    (store.lose if lands else store.refuse)(OSError, times=1 if lands else ALWAYS)
    async with asyncio.timeout(120):
        with pytest.raises(OSError, match="the outcome of a commit is unknown"):
            await cut_off.start()
    assert not cut_off.driver.is_active
    await new.driver.catch_up()
    # The claim that nobody waited for may be in the log all the same: its epoch is over now.
    assert (new.image.controller_id == 3) is lands
    assert await new.start(dead=1)
    entries = new.driver.entries_after(known, 1 << 20)
    assert entries
    async with asyncio.timeout(120):
        await cut_off.driver.follow([(each.version, each.events) for each in entries])
    assert cut_off.image.controller_id == 2
    store.mend()
    assert await cut_off.start(dead=2)
    assert cut_off.driver.is_active and not await new.driver.confirm()
    await stop(gone, new, cut_off)


@in_loop
async def test_who_follows_by_wire_comes_to_the_same_state(memory_path: Path) -> None:
    leader, follower = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    applied: list[Any] = []

    async def apply(events: Any) -> None:
        applied.extend(events)

    await leader.start()
    await follower.driver.catch_up()
    await follower.publish_to(apply)
    for name in ("a", "b", "c"):
        await leader.create(name)
    entries = leader.driver.entries_after(follower.image.version, 1)
    assert entries is not None and len(entries) == 1, "at least one, however large"
    entries = leader.driver.entries_after(follower.image.version, 1 << 20) or []
    assert [entry.version for entry in entries] == [2, 3, 4]
    told = [(entry.version, decode_events(entry.encoded)) for entry in entries]
    await follower.driver.follow(told)
    await follower.driver.follow(told)  # An answer that comes twice changes nothing.
    assert list(follower.image.topics) == ["a", "b", "c"]
    assert follower.image.version == leader.image.version
    assert sum(isinstance(event, PartitionChanged) for event in applied) == 3
    assert leader.driver.entries_after(leader.image.version, 1 << 20) == []
    await stop(leader, follower)


@in_loop
async def test_what_others_will_ask_for_is_encoded_with_the_commit(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.metadata.log.SNAPSHOT_INTERVAL", 2)
    leader = Broker(memory_path)
    await leader.start()
    await leader.driver.decide(
        lambda c: c.register_broker(
            2, incarnation_id=bytes(16), endpoints=[], rack=None, previous_broker_epoch=-1
        )
    )
    before = leader.image.version
    for name in ("a", "b", "c"):
        await leader.create(name)
    assert events_of(versions(memory_path)[-3])[0]["type"] == "Snapshot"
    with monkeypatch.context() as patched:
        patched.delattr("broker.controller.metadata_driver.encode_events")
        entries = leader.driver.entries_after(before, 1 << 20) or []
        encoded = [entry.encoded for entry in entries]
    assert encoded == [encode_events(entry.events) for entry in entries]
    assert len(encoded) == 3
    await stop(leader)


def test_a_tail_that_forgot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.controller.metadata_driver.COMMITS_MAX", 3)
    tail = RecentCommits(10)
    for version in (11, 13, 14, 17):
        tail.add(version, [])
    assert tail.after(10, 100) is None
    assert [each.version for each in tail.after(11, 100) or []] == [13, 14, 17]
    assert [each.version for each in tail.after(13, 100) or []] == [14, 17]
    assert tail.after(17, 100) == []


@pytest.mark.parametrize("data", [b"", b"{}", b'[{"type":"Unheard"}]', b"[1]", b"\xff"])
def test_bytes_that_are_no_events_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_events(data)
