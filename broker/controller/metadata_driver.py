"""Shell: drives the metadata: takes decisions, commits them, applies them and answers; or follows another controller.

Nothing is answered before it is durable. All pending decisions go into one commit, on an image that is ahead of the
committed one; a failed commit undoes everything decided since. While the outcome of a commit is unknown the same bytes
are tried again. A broker becomes the controller by a commit on top of the whole log (`claim`), and resigns when it
meets another one's records. The image changes under one lock, in the driver's own tasks, which no caller can cancel. An
unexpected error stops the driver and the broker: what of it is in the log is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from broker.controller.controller import Controller, ControllerResult, NewTopic, TopicResult
from broker.controller.controller_stats import ControllerStats, unclean_line
from broker.metadata.events import ControllerChange, Event, Snapshot, encode_events
from broker.metadata.image import MetadataImage
from broker.metadata.log import Commit, MetadataLog, VersionsMissing, replay_commit
from kafka_ds.delta.commit import Conflict, FateUnknown, NotCommitted
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.topic.metadata_table import MetadataPosition

_LOGGER = logging.getLogger(__name__)

# Decisions that wait for the store; more than this are refused.
PENDING_MAX = 10_000
# Events of one commit; a larger decision is committed alone.
GROUP_EVENTS_MAX = 20_000
# Commits that are kept in memory for following brokers.
COMMITS_MAX = 1_000
EVENTS_MAX = 50_000
FATE_RETRY_SECONDS = 0.5
APPLIED_LOOK_SECONDS = 1.0
# A store that does not answer must not keep a broker from stopping.
STOP_SECONDS_MAX = 5.0

T = TypeVar("T")
Publisher = Callable[[Sequence[Event]], Awaitable[None]]


def _ignore(*_: object) -> None:
    """No callback."""


class MetadataDriver:
    """The cluster's metadata on this broker, which decides or follows."""

    def __init__(
        self,
        log: MetadataLog,
        image: MetadataImage,
        *,
        node_id: int,
        controller: Controller,
        executor: Executor | None = None,
        committed: Callable[[int], None] = _ignore,
        failed: Callable[[BaseException], None] = _ignore,
    ) -> None:
        """`image` is the result of `log.load()`, `controller` begins on a copy of it; `executor` runs one thing at a
        time.

        `committed` is called with the version of each commit of this controller after it was applied; `failed` with an
        unexpected error, after which this broker must stop.
        """
        self.image = image
        # How far the image was applied on this broker: behind `image.version` while a commit is applied.
        self.applied_version = image.version
        self._publish: Publisher | None = None
        self._committed = committed
        self._failed = failed
        # Counted for the metrics.
        self.new_active_controllers = 0
        self.apply_errors = 0
        self.stats = ControllerStats()
        self.fates_unknown = 0
        # Whether the thread waits for the store; perhaps nothing waits for the thread any more.
        self.is_at_store = False
        self.log = log
        self._node_id = node_id
        self.controller = controller
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="controller")
        self._recent = RecentCommits(image.version)
        self._turn = asyncio.Lock()
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._working: dict[asyncio.Task[Any], None] = {}
        self._queue: list[PendingDecision] = []
        self._committer: asyncio.Task[None] | None = None
        self._is_active = False
        self._is_stopped = False
        self._is_left_behind = False
        self._deposed = DeposedSignal()
        # Whether its thread may still wait for the store.
        self._has_given_up = False

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller."""
        return self._is_active

    @property
    def folder(self) -> str:
        """The folder of the metadata log, for messages."""
        return self.log.folder

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration, -1 before there is one."""
        registered = self.image.brokers.get(self._node_id)
        return registered.broker_epoch if registered else -1

    @property
    def pending(self) -> int:
        """How many decisions wait for the store."""
        return len(self._queue)

    # -- claim and resignation ----------------------------------------------------------------

    async def claim(
        self,
        decide: Callable[[ControllerClaim], None],
        *,
        controller_epoch: int,
        begin: Callable[[Controller], None] = lambda _: None,
    ) -> bool:
        """Try to become the controller, with the decisions of `decide`, in one commit; False if another was faster.

        `controller_epoch`: that of the controller that was taken for dead. A newer one is left alone. `begin` is called
        when the claim is durable, before anything else is decided.

        Raises OSError if the store does not answer. The claim may be in the log then, or get there later: no decision
        rests on it, and whoever reads it, this broker too, claims again.
        """
        return await self._to_the_end(self._claim(decide, controller_epoch, begin))

    async def _claim(
        self,
        decide: Callable[[ControllerClaim], None],
        epoch: int,
        begin: Callable[[Controller], None],
    ) -> bool:
        async with self._turn:
            assert not self._is_active, "the controller claims nothing"
            await self._read_log()
            if self.image.controller_epoch != epoch:
                return False
            self._reset()
            claiming = ControllerClaim(self.controller, self.folder)
            decide(claiming)
            try:
                # A driver that waited for its outcome here could not follow a controller that came meanwhile.
                version, encoded = await self._commit(claiming.events, asks_again=False)
            except (Conflict, NotCommitted) as error:
                _LOGGER.info("%s: not the controller: %s", self.folder, error)
                await self._read_log()
                return False
            except Deposed as error:
                raise OSError(str(error)) from error
            await self._replay(version, claiming.events, encoded)
            self._reset()
            if self._is_stopped:
                return False
            begin(self.controller)
            self._is_active = True
            self.new_active_controllers += 1
        self._committed(version)
        return True

    async def confirm(self) -> bool:
        """Check for another controller's records; a deposed controller resigns.

        Raises OSError if the store does not answer, or no longer has the versions after the known ones.
        """
        if not self._is_active or self._committer is not None:
            return self._is_active  # A commit in flight finds out by itself.
        return await self._to_the_end(self._confirm())

    async def _confirm(self) -> bool:
        async with self._turn:
            found = await self._newer()
            if not found or not self._is_active:
                return self._is_active
            version = found[-1][0]
            self._revert([], Conflict(f"version {version} was written by another controller"))
            await self._replay_all(found)
        return False

    async def step_down(self) -> None:
        """Stop deciding, and finish what was decided."""
        self._is_active, self._is_stopped = False, True
        self._wake()
        working = list(self._working)
        if working:
            _, unended = await asyncio.wait(working, timeout=STOP_SECONDS_MAX)
            for task in unended:
                self._has_given_up = True
                task.cancel()

    async def stop(self) -> None:
        """Stop deciding for good, as `step_down`, and end the thread."""
        await self.step_down()
        # An abandoned thread may never end.
        self._executor.shutdown(wait=not (self._has_given_up or self.is_at_store))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._working[task] = None
        task.add_done_callback(self._working.pop)
        return task

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, whether or not the caller still waits."""
        return await asyncio.shield(self._begin(work))

    # -- following ----------------------------------------------------------------------------

    async def follow(self, entries: Sequence[tuple[int, Sequence[Event]]]) -> None:
        """Apply the controller's commits, without a gap from a known one on."""
        await self._to_the_end(self._follow(entries))

    async def _follow(self, entries: Sequence[tuple[int, Sequence[Event]]]) -> None:
        async with self._turn:
            if not self._is_active:
                await self._replay_all(entries)

    async def follow_instead(self, entries: Sequence[tuple[int, Sequence[Event]]]) -> None:
        """As `follow`; if this broker is the controller, it resigns when the commits have another one."""
        known = self.image.controller_epoch
        changes = [e for _, events in entries for e in events if isinstance(e, ControllerChange)]
        if self._is_active and all(each.controller_epoch <= known for each in changes):
            return
        self._deposed.set()
        await self._to_the_end(self._follow_instead(entries))

    async def _follow_instead(self, entries: Sequence[tuple[int, Sequence[Event]]]) -> None:
        async with self._turn:
            self._deposed.clear()
            if self._is_active and any(version > self.image.version for version, _ in entries):
                self._revert([], Conflict("another broker has become the controller"))
            await self._replay_all(entries)

    async def catch_up(self) -> None:
        """Apply the table's commits; raises OSError if the store does not answer."""
        await self._to_the_end(self._catch_up())

    async def _catch_up(self) -> None:
        async with self._turn:
            if not self._is_active:
                await self._read_log()

    async def start_publishing(
        self, start: Callable[[], Awaitable[None]], publish: Publisher
    ) -> None:
        """Start the broker with the present image, and publish every later commit to its parts."""
        async with self._turn:
            await start()
            self._publish = publish

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Wait for the next change of the metadata or of this broker's role, up to a limit."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await asyncio.wait([waiting], timeout=timeout_seconds)
        finally:
            del self._waiting[waiting]

    async def applied(self) -> None:
        """Wait until this broker has done what the metadata that it knows by now ask of it."""
        version = self.image.version
        while self.applied_version < version:
            await self.wait_for_change(APPLIED_LOOK_SECONDS)

    def entries_after(self, version: int, max_bytes: int) -> list[RecentCommit] | None:
        """The commits after a version, as sent to brokers; None if only the table has them."""
        return self._recent.after(version, max_bytes)

    async def _read_log(self) -> None:
        await self._replay_all(await self._newer())

    async def _newer(self) -> list[tuple[int, list[Event]]]:
        if self.is_at_store:
            raise OSError(f"{self.folder}: the store did not answer in time")
        version = self.image.version
        try:
            reading = self._in_thread(lambda: self.log.read_after(version))
            return await self._deposed.unless(reading)
        except Deposed as error:
            raise OSError(str(error)) from error
        except VersionsMissing as error:
            # Only commits that a snapshot repeats are cleaned up; after this broker's last one only another writes
            # snapshots.
            self._revert([], Conflict(str(error)))
            why = OSError(f"{error}; restart this broker")
            if not self._is_left_behind:
                self._is_left_behind = True
                self._failed(why)
            raise why from error

    async def _replay_all(self, entries: Sequence[tuple[int, Sequence[Event]]]) -> None:
        for version, events in entries:
            if version > self.image.version:
                await self._replay(version, events)

    async def _replay(
        self, version: int, events: Sequence[Event], encoded: bytes | None = None
    ) -> None:
        """Apply durable events at this broker."""
        if self._publish is not None and (unclean := self.stats.count(self.image, events)):
            _LOGGER.warning("%s", unclean_line(unclean))
        replay_commit(self.image, version, events, self.folder)
        news = events[1:] if events and isinstance(events[0], Snapshot) else events
        self._recent.add(version, news, encoded)
        # It is durable: other brokers need not wait until all of it is applied on this one. A stopping broker moves its
        # leaders as fast as it has applied the last of them.
        self._wake()
        try:
            if self._publish is not None:
                await self._publish(news)
        except Exception:
            # The decision stays: that this broker cannot apply it concerns this broker only.
            self.apply_errors += 1
            _LOGGER.exception("could not apply metadata version %d", version)
        self.applied_version = version
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    # -- deciding -----------------------------------------------------------------------------

    async def decide(
        self, make: Callable[[Controller], ControllerResult[T]], *, at_once: bool = False
    ) -> T:
        """Make a decision durable and apply it; then return its result.

        `at_once`: a result without events is returned before the decisions that it may rest on are durable.

        Raises KafkaError: NOT_CONTROLLER, KAFKA_STORAGE_ERROR (retriable: nothing of it has happened).
        """
        if not self._is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the active controller")
        decision = make(self.controller)
        if not decision.events and (at_once or self._committer is None):
            return decision.result
        # Only now: heartbeats without events count, or all brokers would be fenced when the store is back.
        if len(self._queue) >= PENDING_MAX:
            message = f"{PENDING_MAX} changes wait for {self.folder}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        # A result without events may still rest on pending events.
        ahead = self.controller.image
        for sequence, event in enumerate(decision.events):
            # The version is not known yet, only that it is not before this one.
            ahead.replay(event, MetadataPosition(self.image.version + 1, sequence))
        done = asyncio.get_running_loop().create_future()
        self._queue.append(PendingDecision(decision.events, done))
        if self._committer is None:
            self._committer = self._begin(self._commit_pending())
        await done
        return decision.result

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics; they are open for appends when this returns, where this broker leads them."""
        return await self.decide(lambda c: c.create_topics(topics, validate_only=validate_only))

    async def delete_topics(self, topics: Sequence[tuple[str | None, bytes]]) -> list[TopicResult]:
        """Delete topics by name, or by id where the name is None."""
        return await self.decide(lambda c: c.delete_topics(topics))

    # -- committing ---------------------------------------------------------------------------

    async def _commit_pending(self) -> None:
        """Commit group after group until nothing is pending."""
        group: list[PendingDecision] = []
        try:
            while self._queue:
                group, self._queue = next_group(self._queue)
                try:
                    await self._commit_group(group)
                except (Conflict, NotCommitted) as error:
                    self._revert(group, error)
                except Deposed as error:
                    later, self._queue = self._queue, []
                    self._revert(group, error)
                    self._revert(later, Conflict(str(error)))
        except BaseException as error:
            self._revert(group, error)
            if not isinstance(error, Exception):
                raise
            self._failed(error)
        finally:
            self._committer = None

    async def _commit_group(self, group: Sequence[PendingDecision]) -> None:
        events = [event for each in group for event in each.events]
        version = self.image.version
        if events:
            async with self._turn:
                if not self._is_active and not self._is_stopped:
                    raise Conflict("this broker is no longer the controller")
                version, encoded = await self._commit(events)
                self.controller.committed(version, events)
                await self._replay(version, events, encoded)
        for each in group:
            if not each.done.done():
                each.done.set_result(None)
        if events:
            self._committed(version)

    async def _commit(
        self, events: Sequence[Event], *, asks_again: bool = True
    ) -> tuple[int, bytes | None]:
        """Write the decisions to the log; returns the version, and the bytes for following brokers.

        Raises Conflict, NotCommitted, Deposed, and OSError if its outcome is unknown and `asks_again` is not set.

        Encoding a commit of many events takes long, in any form: that is the thread's work, too. It goes there once:
        each time it waits for the interpreter, which a busy event loop holds for milliseconds.
        """
        # Not asked in the thread: if this controller is deposed, the image goes on without it.
        has_followers, decided_on = len(self.image.brokers) > 1, self.image.version
        commit: Commit | None = None

        def put() -> tuple[int, bytes | None]:
            nonlocal commit
            if commit is None:
                commit = self.log.begin(events, self.image, decided_on=decided_on)
            version = self.log.commit(commit)
            return version, commit.encoded() if has_followers else None

        while True:
            try:
                return await self._deposed.unless(self._in_thread(put))
            except (FateUnknown, OSError) as error:
                self.fates_unknown += 1
                if not asks_again:
                    raise OSError(f"{self.folder}: the outcome of a commit is unknown") from error
            _LOGGER.warning(
                "%s: Cannot tell whether a commit of metadata records was made, looking again",
                self.folder,
            )
            await self._deposed.unless(asyncio.sleep(FATE_RETRY_SECONDS))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def begin() -> T:
            self.is_at_store = True
            try:
                return work()
            finally:
                self.is_at_store = False

        return await asyncio.get_running_loop().run_in_executor(self._executor, begin)

    def _revert(self, group: Sequence[PendingDecision], error: BaseException) -> None:
        """Undo this group, which did not happen, and the later decisions that build on it."""
        failed = [*group, *self._queue]
        self._queue = []
        self._reset()
        if isinstance(error, Conflict):
            self._resign(error)
            refusal = KafkaError(ErrorCode.NOT_CONTROLLER, str(error))
        elif isinstance(error, NotCommitted):
            _LOGGER.error("%s: Failed to write metadata records: %s", self.folder, error)
            refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        else:
            # Some of it may be in the log, or get there later: the next controller will know.
            self._resign(error)
            refusal = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "it is not known whether this change was committed"
            )
        for each in failed:
            if not each.done.done():
                each.done.set_exception(refusal)

    def _reset(self) -> None:
        self.controller.reset(self.image.copy())

    def _resign(self, error: BaseException) -> None:
        if not self._is_active:
            return
        _LOGGER.error("%s: %s: Resigned as controller", self.folder, error or "interrupted")
        self._is_active = False
        self._wake()


class ControllerClaim:
    """The decisions of the commit with which a broker becomes the controller, each on top of those before it."""

    def __init__(self, controller: Controller, folder: str) -> None:
        self.folder = folder
        self.controller = controller
        self.events: list[Event] = []

    @property
    def image(self) -> MetadataImage:
        """The cluster after the decisions."""
        return self.controller.image

    def apply(self, make: Callable[[Controller], ControllerResult[T]]) -> T:
        """Decide one more thing."""
        decision = make(self.controller)
        ahead = self.controller.image
        version = ahead.version + 1 if not self.events else ahead.version
        for event in decision.events:
            ahead.replay(event, MetadataPosition(version, len(self.events)))
            self.events.append(event)
        return decision.result


class Deposed(Exception):
    """There is another controller, while the outcome of a commit of this one is unknown."""


class DeposedSignal:
    """Ends a controller's wait for the store when it learns over RPC of another controller.

    A hanging store must not keep a broker from following. A begun write may still end, in a thread; nothing waits for
    it any more.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """There is another controller: until `clear`, nothing more is waited for."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """This broker continues with that controller's decisions."""
        self._is_set = False

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work; raises Deposed if `set` comes first."""
        if self._is_set:
            work.close()
            raise Deposed("another broker has become the controller")
        working = asyncio.ensure_future(work)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((working, self._waiter), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Deposed("another broker has become the controller")
            return working.result()
        finally:
            working.cancel()


class PendingDecision(NamedTuple):
    """A decision that is not durable yet."""

    events: tuple[Event, ...]
    done: asyncio.Future[None]


def next_group(
    queue: Sequence[PendingDecision],
) -> tuple[list[PendingDecision], list[PendingDecision]]:
    """The decisions of the next commit, and those of later ones; a large decision goes alone."""
    count = total = 0
    for each in queue:
        total += len(each.events)
        if count and total > GROUP_EVENTS_MAX:
            break
        count += 1
    return list(queue[:count]), list(queue[count:])


class RecentCommit:
    """One commit, as events and, once requested, as bytes."""

    __slots__ = ("_encoded", "events", "version")

    def __init__(self, version: int, events: Sequence[Event], encoded: bytes | None = None) -> None:
        self.version = version
        self.events = events
        self._encoded = encoded

    @property
    def encoded(self) -> bytes:
        """The events as a JSON array."""
        if self._encoded is None:
            self._encoded = encode_events(self.events)
        return self._encoded


class RecentCommits:
    """Every commit after `begins_after`, without a gap, so that a broker that follows from there needs no table.

    Bytes are made once: with the commit if there are other brokers, otherwise at the first request, so that a lone
    broker never pays for them. They are the bytes of the log without snapshots, which a follower does not need.
    """

    def __init__(self, version: int) -> None:
        """Begin with nothing, at this version of the log."""
        self.begins_after = version
        self._entries: deque[RecentCommit] = deque()
        self._events = 0

    def add(self, version: int, events: Sequence[Event], encoded: bytes | None = None) -> None:
        """Add the next commit, and its bytes if they are made already."""
        self._entries.append(RecentCommit(version, events, encoded))
        self._events += len(events)
        while len(self._entries) > COMMITS_MAX or (
            self._events > EVENTS_MAX and len(self._entries) > 1
        ):
            oldest = self._entries.popleft()
            self._events -= len(oldest.events)
            self.begins_after = oldest.version

    def after(self, version: int, max_bytes: int) -> list[RecentCommit] | None:
        """The commits after a version, at least one if there are any; None where some are not here any more."""
        if version < self.begins_after:
            return None
        found: list[RecentCommit] = []
        size = 0
        for entry in self._entries:
            if entry.version <= version:
                continue
            size += len(entry.encoded)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found
