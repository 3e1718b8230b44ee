"""Shell: what the worker does for each operation that the broker may ask for.

Rules of this file: requests become calls of the storage, the metadata or the copier, and results become
headers and payloads; nothing is decided here. `writing` operations run in one thread, `maintaining` ones in another,
`reading` ones in several.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from broker.crash_points import CrashPoints
from broker.ipc.channel import Answer, Header, Operation
from broker.ipc.shared_memory import WorkerMemory
from broker.system import SystemClock, SystemDisk, new_uuid
from broker.worker.cache.disk_cache import FOLDER, DiskCache
from broker.worker.copier import STORE_ERRORS, Copier, Failure, apart
from broker.worker.delta.check import Look
from broker.worker.delta.storage import DeltaStorage
from broker.worker.maintenance import Upkeep
from broker.worker.metadata.materialise import Materialiser
from broker.worker.metadata.offset_rows import rows_of
from broker.worker.metadata.remote_log import DeltaMetadata
from broker.worker.orphans import Orphans
from broker.worker.rpc import CopyRange, CopyRequest, TieredState
from broker.worker.settings import TierSettings
from broker.worker.spi import CommitLost, StorageError
from broker.worker.sweeper import Place, Sweeper
from kafka_ds.delta.commit import CommitError, Conflict
from kafka_ds.delta.log import ForeignTable, SystemLogClock
from kafka_ds.delta.store.uri import probe
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.topic.expiration import Retention
from kafka_ds.topic.lake import open_lake
from kafka_ds.topic.names import CLUSTER_METADATA, OFFSETS, REMOTE_LOG_METADATA
from kafka_ds.topic.offsets import OffsetsTable, present

log = logging.getLogger(__name__)

# Of a copy's partitions so many wait for the store at a time: for fsyncs, which a disk does together, or for
# answers. How many are converted meanwhile is `lake.copy.threads`.
STORE_THREADS = 16


class Service:
    """The worker's operations over the lake."""

    def __init__(
        self,
        settings: TierSettings,
        crash_points: CrashPoints,
        memory: WorkerMemory | None = None,
    ) -> None:
        """`memory` is shared with the broker."""
        self._memory = memory
        self._store = open_lake(settings.lake_uri, is_there=True)
        self._checked = False
        self._touched: dict[str, None] = {}
        self._complaints_told = 0
        self._cache = _open_cache(settings)
        self._clock = SystemLogClock()
        self._orphans = Orphans(self._store, self._clock)
        due = self._orphans.are_due_in
        self._storage = DeltaStorage(
            self._store,
            settings,
            crash_points,
            cache=self._cache,
            memory=memory,
            checkpointed=due,
            was_deleted=lambda topic_id: self._materialiser.was_deleted(topic_id),
            threads=STORE_THREADS,
        )
        self._metadata = DeltaMetadata(self._store, settings, crash_points, checkpointed=due)
        self._materialiser = Materialiser(
            self._store, settings, crash_points, self._delete_rows, checkpointed=due
        )
        self._copier = Copier(
            self._storage,
            self._metadata,
            node_id=settings.node_id,
            crash_points=crash_points,
            new_id=new_uuid,
            threads=STORE_THREADS,
        )
        self._sweeper = Sweeper(self._storage, self._metadata, self._copier, crash_points)
        self._node_id = settings.node_id
        self._offsets = OffsetsTable(self._store, clock=self._clock)
        self._offsets_version: int | None = None
        """Of the last note, where the table was not looked after since."""
        self._offsets_upkeep = Upkeep(
            self._store,
            crash_points,
            self._clock,
            interval=settings.lake_checkpoint_interval,
            checkpointed=due,
        )

    def writing(self) -> dict[str, Operation]:
        """Operations that change the lake: one at a time."""
        return {
            "copy": self._copy,
            "check": self._check,
            "repair": self._repair,
            "delete_topic": self._delete_topic,
            "materialise": self._materialise,
            "fence": self._fence,
            "move_log_start": self._move_log_start,
            "survey": self._survey,
            "sweep": self._sweep,
            "note_offsets": self._note_offsets,
        }

    def reading(self) -> dict[str, Operation]:
        """Operations that only read it."""
        return {
            "read": self._read,
            "offset_for_timestamp": self._offset_for_timestamp,
            "max_timestamp": self._max_timestamp,
            "state": self._state,
            "ending": self._ending,
            "give_up": self._give_up,
            "noted_offsets": self._noted_offsets,
        }

    def maintaining(self) -> dict[str, Operation]:
        """Slow operations on the tables, for which nobody waits."""
        return {"lay_out": self._lay_out}

    def _lay_out(self, request: Header) -> Answer:
        place = Place.of(request)
        given_up = self._copier.is_given_up
        done = self._storage.layout.lay_out(
            place.topic,
            place.topic_id,
            place.partition,
            leader_epoch=place.leader_epoch,
            takes_any_expired=request["takes_any_expired"],
            goes_on=lambda: not given_up(place.topic_id, place.partition, place.leader_epoch),
        )
        # What others did to the table is noted in it also where nothing is copied.
        _look_after(f"the table of {place.topic}", partial(self._storage.maintain, place.topic))
        return asdict(done), ()

    def _copy(self, request: Header) -> Answer:
        self._check_store()
        self._touched |= dict.fromkeys(each["topic"] for each in request["topics"])
        answer = self._copier.copy(CopyRequest.of(request))
        return {**answer.header(), "complaints": self._fresh_complaints()}, ()

    def _check(self, request: Header) -> Answer:
        """What the store lacks of each partition, and whether the commits are those that they were."""
        whole = [each for each in request["partitions"] if each["is_whole"]]
        if whole:
            self._copier.recover()
        for topic in {each["topic"] for each in whole}:
            self._storage.check.forget(topic)
        return {"partitions": [self._check_of(each)[0] for each in request["partitions"]]}, ()

    def _check_of(self, question: Header) -> tuple[Header, Look | None]:
        place, answer, found = Place.of(question), dict[str, Any](), None
        with apart(lambda message, _: answer.update(error=message)):
            is_lost = False
            for version, commit_id in question["commits"]:
                try:
                    self._storage.confirm(place.topic, (version, commit_id))
                except CommitLost as error:
                    log.error("%s-%d: %s", place.topic, place.partition, error)
                    is_lost = True
            if question["is_whole"]:
                segments = self._metadata.list_segments(place.topic_id, place.partition)
                found = self._storage.check.look(
                    place.topic, place.topic_id, place.partition, question["start_offset"], segments
                )
                end = found.tiered_end
            else:
                end = self._storage.state(place.topic, place.topic_id, place.partition).tiered_end
            missing = [asdict(each) for each in found.missing] if found else []
            answer |= {"lost": is_lost, "tiered_end": end, "missing": missing}
        return answer, found

    def _repair(self, request: Header) -> Answer:
        """Write again what the store lacks, and look once more."""
        self._check_store()
        return {"partitions": [self._repair_of(each) for each in request["partitions"]]}, ()

    def _repair_of(self, question: Header) -> Header:
        place, failed = Place.of(question), dict[str, Any]()
        self._touched[place.topic] = None
        answer, found = self._check_of({**question, "is_whole": True})
        if found is None:
            return answer
        with apart(lambda message, _: failed.update(error=message)):
            self._storage.check.repair(
                place.topic,
                place.topic_id,
                place.partition,
                leader_epoch=place.leader_epoch,
                look=found,
                sources={
                    (each["read_from"], each["read_to"]): [
                        CopyRange(**one) for one in each["ranges"]
                    ]
                    for each in question["sources"]
                },
            )
            # An attempt that was committed and not FINISHED, since its file was missing.
            self._copier.recover()
        return failed or self._check_of({**question, "is_whole": True})[0]

    def _give_up(self, request: Header) -> Answer:
        # Read by another thread, as the one that copies is at it.
        topic_id = uuid_from_text(request["topic_id"])
        self._copier.give_up(topic_id, request["partition"], request["leader_epoch"])
        return {}, ()

    def _fresh_complaints(self) -> int:
        """Other writers' commits with rows, those that the broker was not told of yet."""
        before, self._complaints_told = self._complaints_told, self._storage.complaints()
        return self._complaints_told - before

    def afterwards(self) -> None:
        """Upkeep of the tables after a write, in the maintenance thread: nobody waits for it."""
        while self._touched:
            topic, _ = self._touched.popitem()
            _look_after(f"the table of {topic}", partial(self._storage.maintain, topic))
        _look_after(REMOTE_LOG_METADATA, self._metadata.maintain)
        _look_after(CLUSTER_METADATA, self._materialiser.maintain)
        if self._offsets_version is not None:
            version, self._offsets_version = self._offsets_version, None
            _look_after(OFFSETS, partial(self._offsets_upkeep.look_after, OFFSETS, version))
        _look_after("orphans, for a day", self._orphans.take_out)

    def _check_store(self) -> None:
        """Refuse a store on which two writers can both win a commit, before the first write to it."""
        if not self._checked:
            probe(self._store)
            self._checked = True

    def _delete_topic(self, request: Header) -> Answer:
        self._delete_rows(request["topic"], uuid_from_text(request["topic_id"]))
        return {}, ()

    def _delete_rows(self, topic: str, topic_id: bytes) -> None:
        self._sweeper.delete_topic(topic, topic_id)

    def _move_log_start(self, request: Header) -> Answer:
        self._check_store()
        self._touched[request["topic"]] = None
        self._storage.move_log_start(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            leader_epoch=request["leader_epoch"],
            offset=request["offset"],
        )
        # Told by others, or not ours to tell any more: whoever asked sees it by this.
        place = (request["topic"], request["topic_id"], request["partition"])
        return self._states([place], {})[0], ()

    def _survey(self, request: Header) -> Answer:
        """Where each partition is to begin, or why that is unknown."""
        return {"partitions": [self._survey_of(each) for each in request["partitions"]]}, ()

    def _survey_of(self, question: Header) -> Header:
        answer: Header = {}
        with apart(lambda message, _: answer.update(error=message)):
            survey = self._sweeper.survey(
                Place.of(question),
                Retention(**question["retention"]),
                lineage=[(epoch, start) for epoch, start in question["lineage"]],
                copied_offset=question["copied_offset"],
            )
            answer = {**asdict(survey), "decision": survey.decision.header()}
        return answer

    def _sweep(self, request: Header) -> Answer:
        self._check_store()
        self._touched[request["topic"]] = None
        return asdict(self._sweeper.sweep(Place.of(request))), ()

    def _fence(self, request: Header) -> Answer:
        """Fence each partition at its given leader epoch; returns their states after that, or errors."""
        self._check_store()
        wanted: dict[tuple[str, str], dict[int, int]] = {}
        for topic, topic_id, partition, leader_epoch in request["partitions"]:
            wanted.setdefault((topic, topic_id), {})[partition] = leader_epoch
        failed: dict[tuple[str, str], Failure] = {}
        for (topic, topic_id), epochs in wanted.items():
            self._touched[topic] = None
            with apart(partial(_note, failed, (topic, topic_id))):
                self._storage.fence(topic, uuid_from_text(topic_id), epochs)
        asked = [(topic, id_, partition) for topic, id_, partition, _ in request["partitions"]]
        return {"partitions": self._states(asked, failed)}, ()

    def _note_offsets(self, request: Header) -> Answer:
        """Replace this broker's notes of its partitions and groups."""
        self._check_store()
        rows = list(rows_of(request["partitions"], request["shards"], self._clock.wall_ms()))
        try:
            version = self._offsets.replace(self._node_id, rows)
        except (CommitError, Conflict, ForeignTable) as error:
            raise StorageError(f"{OFFSETS}: {error}") from error
        self._offsets_version = version
        return {"version": version}, ()

    def _noted_offsets(self, request: Header) -> Answer:
        """The valid notes of all brokers."""
        try:
            # Not the writer's own: another thread may be at it.
            rows = OffsetsTable(self._store).read()
        except ForeignTable as error:
            raise StorageError(f"{OFFSETS}: {error}") from error
        return {"rows": present(rows)}, ()

    def _materialise(self, request: Header) -> Answer:
        return {"version": self._materialiser.materialise(request["version"])}, ()

    def _read(self, request: Header) -> Answer:
        found = self._storage.read(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            request["offset"],
            max_bytes=request["max_bytes"],
            committed_only=request["isolation_level"] == 1,
        )
        header: Header = {"next_offset": found.next_offset}
        if self._cache is not None:
            header["cache"] = asdict(self._cache.counts)
        if self._memory is not None and all(at is not None for at, _ in found.shared):
            header |= {"lease": self._memory.lease(found.chunks), "runs": found.shared}
            return header, ()
        header["sizes"] = [len(each) for each in found.chunks]
        return header, found.chunks

    def _offset_for_timestamp(self, request: Header) -> Answer:
        found = self._storage.offset_for_timestamp(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            request["timestamp_ms"],
            start_offset=request["start_offset"],
        )
        return {"found": list(found) if found else None}, ()

    def _max_timestamp(self, request: Header) -> Answer:
        topic_id = uuid_from_text(request["topic_id"])
        found = self._storage.max_timestamp(
            request["topic"], topic_id, request["partition"], start_offset=request["start_offset"]
        )
        return {"found": list(found) if found else None}, ()

    def _ending(self, request: Header) -> Answer:
        found = self._storage.ending(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            request["offset"],
        )
        return {
            "end_offset": found.end_offset,
            "producer_snapshot": found.producer_snapshot.hex(),
            "leader_epochs": found.leader_epochs,
            "epochs_known_to": found.epochs_known_to,
        }, ()

    def _state(self, request: Header) -> Answer:
        return {"partitions": self._states(request["partitions"], {})}, ()

    def _states(
        self, asked: Sequence[Sequence[Any]], failed: Mapping[tuple[str, str], Failure]
    ) -> list[Header]:
        """The state of each (topic, topic id, partition), or its error; each table is asked once."""
        by_topic: dict[tuple[str, str], list[int]] = {}
        for topic, topic_id, partition in asked:
            by_topic.setdefault((topic, topic_id), []).append(partition)
        found: dict[tuple[str, str, int], Header] = {}
        for key, partitions in by_topic.items():
            for each in self._states_of(*key, partitions, failed.get(key)):
                found[*key, each["partition"]] = each
        return [found[topic, topic_id, partition] for topic, topic_id, partition in asked]

    def _states_of(
        self, topic: str, topic_id: str, partitions: Sequence[int], failure: Failure | None
    ) -> list[Header]:
        wanted = uuid_from_text(topic_id)
        failures = [] if failure is None else [failure]
        states: Sequence[TieredState] = ()
        if failure is None:
            with apart(lambda *found: failures.append(found)):
                states = self._storage.states(topic, wanted, partitions)
        if failures:
            error, outcome = failures[0]
            return [
                {"topic": topic, "partition": each, "error": error, "outcome": outcome}
                for each in partitions
            ]
        return [
            {
                "topic": topic,
                "partition": each.partition,
                "tiered_end": each.tiered_end,
                "log_start_offset": each.log_start_offset,
                "conflict": each.conflict,
            }
            for each in states
        ]


def _note(
    failed: dict[tuple[str, str], Failure], key: tuple[str, str], message: str, outcome: str
) -> None:
    failed[key] = message, outcome


def _look_after(what: str, work: Callable[[], object]) -> None:
    """One part of the upkeep: whatever is wrong with one table keeps no other from its own."""
    try:
        work()
    except (CommitError, Conflict, *STORE_ERRORS) as error:
        log.warning("no upkeep of %s: %s", what, error)
    except Exception:
        log.exception("no upkeep of %s", what)


def _open_cache(settings: TierSettings) -> DiskCache | None:
    """The cache of cold reads, in the first log directory as Kafka's is."""
    bytes_max = settings.remote_log_index_file_cache_total_size_bytes
    if not settings.log_dirs or not bytes_max:
        return None
    cache = DiskCache(
        SystemDisk(),
        SystemClock(),
        f"{settings.log_dirs[0]}/{FOLDER}",
        bytes_max=bytes_max,
        ttl_ms=settings.remote_log_index_file_cache_ttl_ms,
    )
    cache.start()
    return cache
