"""Shell: the active controller at work: decisions in, commits out, consequences applied, answers given.

Rules of this file:
- Nothing is answered before it is durable. All decisions that are pending go into one commit (group commit), which
  runs in a thread of its own; those that come meanwhile go into the next.
- Decisions are taken on an image that runs ahead of the committed one, so that two requests in one commit see each
  other. A commit that fails takes back everything decided since: the image ahead is copied from the committed one.
- While the fate of a commit is unknown the same bytes are tried again and nothing is answered.
- A controller that meets another's decisions resigns and decides nothing more (its lake is another's now).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from broker.cluster.controller import Controller, Decision, Defaults, NewTopic, TopicResult
from broker.cluster.events import ClusterCreated, Endpoint, Event
from broker.cluster.image import MetadataImage, Position
from broker.cluster.metadata_log import MetadataLog, Superseded, Undecided, replay_commit
from broker.settings import ConfigError
from kafka_ds.lake.attempt import Attempt
from kafka_ds.wire.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

GROUP_EVENTS_MAX = 20_000
FATE_RETRY_SECONDS = 0.5
# A store that does not answer must not keep a broker from stopping.
STOP_SECONDS_MAX = 5.0

Result = TypeVar("Result")
Apply = Callable[[Sequence[Event]], Awaitable[None]]


class Pending(NamedTuple):
    """A decision that is not durable yet."""

    events: tuple[Event, ...]
    done: asyncio.Future[None]


class ClusterDriver:
    """Decides for the cluster, and lets this broker follow."""

    def __init__(
        self,
        log: MetadataLog,
        image: MetadataImage,
        *,
        node_id: int,
        defaults: Defaults,
        new_uuid: Callable[[], bytes],
        check_configs: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`image` is what `log.load()` gave; `check_configs` raises KafkaError for a topic's wrong setting."""
        self.image = image
        self.apply: Apply = _nothing_follows
        # Told of each commit after it was applied: version and events.
        self.on_commit: Callable[[int, Sequence[Event]], None] | None = None
        self.on_resigned: Callable[[], None] | None = None
        self._log = log
        self._node_id = node_id
        self._controller = Controller(
            image.copy(), defaults=defaults, new_uuid=new_uuid, check_configs=check_configs
        )
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="controller")
        self._queue: list[Pending] = []
        self._committer: asyncio.Task[None] | None = None
        self._is_active = False

    # -- beginning and ending -----------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker decides for the cluster."""
        return self._is_active

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration, -1 before there is one."""
        registered = self.image.brokers.get(self._node_id)
        return registered.broker_epoch if registered else -1

    async def start(
        self,
        *,
        cluster_id: str,
        incarnation_id: bytes,
        endpoints: Sequence[Endpoint],
        rack: str | None = None,
        previous_broker_epoch: int = -1,
    ) -> bool:
        """Become the controller and register this broker, in one commit; True after a clean stop.

        `cluster_id` is that of the log directories: another cluster's lake is refused. `apply` is not called for
        this commit: the broker begins from the image (`ReplicaManager.start`).
        """
        self._check_belongs(cluster_id)
        controller = self._controller
        events: list[Event] = []
        if self.image.cluster_id is None:
            events.append(ClusterCreated(cluster_id=cluster_id))
        events.extend(controller.claim(self._node_id).events)
        registration = controller.register_broker(
            self._node_id,
            incarnation_id=incarnation_id,
            endpoints=endpoints,
            rack=rack,
            previous_broker_epoch=previous_broker_epoch,
            fenced=False,
        )
        events.extend(registration.events)
        version = await self._commit(self._log.begin(events, self.image))
        replay_commit(self.image, version, events)
        self._reset()
        self._is_active = True
        self._tell(version, events)
        return registration.result

    def _check_belongs(self, cluster_id: str) -> None:
        folder = self._log.folder
        if self.image.cluster_id not in (None, cluster_id):
            raise ConfigError(
                f"lake.uri: {folder} belongs to cluster {self.image.cluster_id}, "
                f"log.dirs to cluster {cluster_id}"
            )
        others = sorted(set(self.image.brokers) - {self._node_id})
        if others:
            raise ConfigError(
                f"node.id={self._node_id}: {folder} is the metadata of broker {others[0]}, "
                "and one broker a cluster is served yet"
            )

    async def stop(self) -> None:
        """Decide nothing more, and end what was decided."""
        self._is_active = False
        committer = self._committer
        if committer is not None:
            _, unsettled = await asyncio.wait([committer], timeout=STOP_SECONDS_MAX)
            for task in unsettled:
                task.cancel()
        self._executor.shutdown(wait=committer is None)

    # -- deciding -----------------------------------------------------------------------------

    async def decide(self, make: Callable[[Controller], Decision[Result]]) -> Result:
        """Take a decision, make it durable and let it take effect; then its result."""
        if not self._is_active:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "this broker does not decide for the cluster"
            )
        decision = make(self._controller)
        if not decision.events and self._committer is None:
            return decision.result
        # A result without events may still speak of what is only about to be true.
        ahead = self._controller.image
        for sequence, event in enumerate(decision.events):
            # The version is not known yet, only that it is not before this one.
            ahead.replay(event, Position(self.image.version + 1, sequence))
        done = asyncio.get_running_loop().create_future()
        self._queue.append(Pending(decision.events, done))
        if self._committer is None:
            self._committer = asyncio.get_running_loop().create_task(self._commit_pending())
        await done
        return decision.result

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics; they are open for appends when this returns."""
        return await self.decide(lambda c: c.create_topics(topics, validate_only=validate_only))

    async def delete_topics(self, topics: Sequence[tuple[str | None, bytes]]) -> list[TopicResult]:
        """Delete topics by name, or by id where the name is None."""
        return await self.decide(lambda c: c.delete_topics(topics))

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids for this broker."""
        return await self.decide(lambda c: c.allocate_producer_ids(self._node_id))

    async def recovered(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """These partitions have met the lake after an unclean stop."""
        await self.decide(lambda c: c.recovered(partitions))

    # -- committing ---------------------------------------------------------------------------

    async def _commit_pending(self) -> None:
        """Commit group after group until nothing is pending."""
        try:
            while self._queue:
                group = self._next_group()
                events = [event for each in group for event in each.events]
                try:
                    await self._commit_group(events)
                except (Superseded, Undecided) as error:
                    self._take_back(group, error)
                    continue
                for each in group:
                    if not each.done.done():
                        each.done.set_result(None)
        finally:
            self._committer = None

    def _next_group(self) -> list[Pending]:
        count = total = 0
        for each in self._queue:
            total += len(each.events)
            if count and total > GROUP_EVENTS_MAX:
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _commit_group(self, events: Sequence[Event]) -> None:
        if not events:
            return
        version = await self._commit(self._log.begin(events, self.image))
        replay_commit(self.image, version, events)
        self._controller.committed(version, events)
        try:
            await self.apply(events)
        except Exception:
            # What is decided stays decided; that this broker cannot follow is its own trouble.
            _LOGGER.exception("version %d took no effect on this broker", version)
        self._tell(version, events)

    async def _commit(self, attempt: Attempt) -> int:
        loop = asyncio.get_running_loop()
        while True:
            version = await loop.run_in_executor(self._executor, self._log.commit, attempt)
            if version is not None:
                return version
            _LOGGER.warning("%s: the fate of a commit is unknown, asking again", self._log.folder)
            await asyncio.sleep(FATE_RETRY_SECONDS)

    def _take_back(self, group: Sequence[Pending], error: Exception) -> None:
        """Nothing of this group happened, nor what was decided since on top of it."""
        failed = [*group, *self._queue]
        self._queue = []
        self._reset()
        if isinstance(error, Superseded):
            self._resign(error)
            refusal = KafkaError(ErrorCode.NOT_CONTROLLER, str(error))
        else:
            _LOGGER.error("%s: a decision could not be written: %s", self._log.folder, error)
            refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        for each in failed:
            if not each.done.done():
                each.done.set_exception(refusal)

    def _reset(self) -> None:
        self._controller.image = self.image.copy()

    def _resign(self, error: Exception) -> None:
        _LOGGER.error("%s: %s: this broker decides nothing more", self._log.folder, error)
        self._is_active = False
        if self.on_resigned is not None:
            self.on_resigned()

    def _tell(self, version: int, events: Sequence[Event]) -> None:
        if self.on_commit is not None:
            self.on_commit(version, events)


async def _nothing_follows(_: Sequence[Event]) -> None:
    """What a driver without a broker lets follow."""
