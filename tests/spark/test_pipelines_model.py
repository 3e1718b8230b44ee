"""A topic's raw, typed, current and errors tables against a model, in random lives.

A life has records of one format, whose schemas clash and evolve, transactions that commit or abort, more partitions,
replays, and drivers that die right before or after a commit, of a replay, too, or that stand still there while another
one goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from delta.tables import DeltaMergeBuilder
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

import kafka_ds
from kafka_ds.topic.typed_columns import OWN
from spark_conf.pipelines import pipeline as pipeline_module
from spark_conf.pipelines.decoder import KEY, RESCUED
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.pipelines.typed_table import NO_KEY
from tests.fakes.process_death import ProcessDied
from tests.model_runs import seeds
from tests.spark.schema_registry import Sender
from tests.spark.topics import T0_MS, Topic
from tests.spark.typed_formats import Format, Value, format_of
from tests.spark.typed_tables import alter, keep
from tests.spark.typed_values import normal, rebuilt

# In make test one, of JSON without a registry: a life takes minutes on two busy cores.
LIVES_OF_CI = 1
OFFSETS_PER_STEP = 100
OF_COMMITS = [
    f"spark.databricks.delta.{name}"
    for name in ("commitInfo.userMetadata", "write.txnAppId", "write.txnVersion")
]
PARTITIONS_MAX = 3
KEYS = 9
# A column, or a field within one, that came between the look at the table and its MERGE.
SCHEMA_CHANGED = ("DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION")
Place = tuple[int, int]


@dataclass
class Record:
    key: bytes | None
    key_text: str | None
    value: Value
    timestamp_ms: int

    def matches(self, row: dict[str, Any], *, is_replayed: bool) -> bool:
        """Whether a row says what the record does; `is_replayed`: a replay has decoded it otherwise."""
        columns = {n: each for n, each in row.items() if n not in OWN and each is not None}
        rescued = row[RESCUED]
        document = self.value.replayed if is_replayed else self.value.document
        if document is None:
            return columns == {} and (rescued is not None) == (self.value.data is not None)
        return bool(rebuilt(columns, rescued) == normal(document))


class Error(NamedTuple):
    """A row of an errors table."""

    place: Place
    reason: str
    rescued: str | None


@dataclass
class Trouble:
    """What happens to a driver at one of its commits."""

    at: int
    does: Callable[[], None]
    is_after: bool
    commits: int = 0

    def around(self, commit: Callable[..., None]) -> Callable[..., None]:
        def committed(*given: Any, **named: Any) -> None:
            self.commits += 1
            is_now = self.commits == self.at
            if is_now and not self.is_after:
                self.does()
            commit(*given, **named)
            if is_now and self.is_after:
                self.does()

        return committed


@dataclass
class PipelineLife:
    """Two topics with the same records: one has a typed table of all of them, the other one of each key's newest."""

    spark: SparkSession
    random: Random
    patch: pytest.MonkeyPatch
    format: Format
    registry: str
    every: Topic
    current: Topic
    partitions: int = 1
    records: dict[Place, Record] = field(default_factory=dict)
    sent: int = 0
    # What a replay has decoded otherwise, by topic.
    fixed: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    done: Counter[str] = field(default_factory=Counter)

    # -- records ------------------------------------------------------------------------------------

    def send(self) -> None:
        """Records outside of transactions."""
        self._produce(self._producer())

    def commit(self) -> None:
        """A transaction that commits."""
        producer = self._producer("transactional")
        producer.begin_transaction()
        self._produce(producer)
        producer.commit_transaction(60)

    def abort(self) -> None:
        """A transaction that aborts; of its records nothing is to be seen."""
        producer = self._producer("transactional")
        producer.begin_transaction()
        before = dict(self.records)
        self._produce(producer)
        producer.abort_transaction(60)
        self.records = before

    def _producer(self, kind: str = "") -> Producer:
        settings = {"transactional.id": self.every.name} if kind else {}
        producer = Producer({"bootstrap.servers": self.every.broker.bootstrap, **settings})
        if kind:
            producer.init_transactions(60)
        return producer

    def _produce(self, producer: Producer) -> None:
        places: dict[int, Place] = {}
        made: dict[int, Record] = {}
        for _ in range(self.random.randrange(1, 40)):
            key = self.random.choice((None, *range(KEYS)))
            self.sent += 1
            of_key = (None, None) if key is None else self.format.key(f"k{key}")
            record = Record(*of_key, self.format.value(self.random), T0_MS + self.sent)
            made[self.sent] = record
            for topic in (self.every, self.current):
                producer.produce(
                    topic.name,
                    key=record.key,
                    value=record.value.data,
                    partition=(key or 0) % self.partitions,
                    timestamp=record.timestamp_ms,
                    on_delivery=self._placed(places, self.sent),
                )
        assert producer.flush(60) == 0
        self.records |= {places[number]: record for number, record in made.items()}

    def _placed(self, places: dict[int, Place], number: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            place = (message.partition(), message.offset())
            assert places.setdefault(number, place) == place  # the same in both topics

        return delivered

    def grow(self) -> None:
        """One more partition: keys move."""
        if self.partitions < PARTITIONS_MAX:
            self.partitions += 1
            for topic in (self.every, self.current):
                topic.grow(self.partitions)

    # -- drivers ------------------------------------------------------------------------------------

    def keep(self) -> None:
        """The tables are brought up to date, whatever happens to the drivers meanwhile."""
        for topic in (self.every, self.current):
            while not self._with_trouble(partial(keep, topic=topic), self._die, self._overtake):
                pass

    def replay(self) -> None:
        """What did not fit is decoded again, and then values are of the format again."""
        self.keep()
        rescued = {place for place, row in self._rows(self.every).items() if row[RESCUED]}
        told = {row.place for row in self._errors(self.current) if row.rescued is not None}
        self.format.mend()
        for topic in (self.every, self.current):
            alter(topic, "lake.table.value.format", self.format.replay_format)
            replay = partial(Pipelines.replay, topic=topic.name)
            # It has two commits at least: the rows, and the errors that leave.
            latest = 2
            while not self._with_trouble(replay, self._die_replaying, latest=latest):
                latest = 4
            alter(topic, "lake.table.value.format", self.format.value_format)
        mended = {p for p, record in self.records.items() if record.value.replayed is not None}
        self.done["replayed"] += len(rescued & mended)
        self.fixed[self.every.name] |= rescued & mended
        self.fixed[self.current.name] |= told & mended
        self.check()

    def _with_trouble(
        self, run: Callable[[Pipelines], object], *troubles: Callable[[], None], latest: int = 4
    ) -> bool:
        """A driver runs, perhaps with trouble; whether it lived."""
        trouble = Trouble(
            at=self.random.randrange(1, latest + 1),
            does=self.random.choice(troubles),
            is_after=self.random.random() < 0.5,
        )
        with self.patch.context() as patch:
            # By these two every commit is made: of steps, of replays, and of new columns before a MERGE.
            for of, name in ((DataFrameWriter, "save"), (DeltaMergeBuilder, "execute")):
                patch.setattr(of, name, trouble.around(getattr(of, name)))
            driver = self._driver()
            try:
                run(driver)
            except ProcessDied:
                return False
            except AnalysisException as problem:
                # It stood still right before a MERGE, and the other one added a column. Its next round goes on.
                is_known = any(each in str(problem) for each in SCHEMA_CHANGED)
                if not is_known or trouble.does != self._overtake:
                    raise
                return False
            finally:
                driver.close()
        return True

    def _die(self) -> None:
        self.done["killed"] += 1
        raise ProcessDied

    def _die_replaying(self) -> None:
        self.done["replay killed"] += 1
        raise ProcessDied

    def _overtake(self) -> None:
        """This driver stands still while records come, and another driver goes on."""
        self.done["overtaken"] += 1
        self.send()
        # Both have one session, and yet each has settings of its commits of its own.
        settings = {name: self.spark.conf.get(name, None) for name in OF_COMMITS}
        for name in OF_COMMITS:
            self.spark.conf.unset(name)
        driver = self._driver()
        keep(driver, self.every)
        keep(driver, self.current)
        driver.close()
        for name, text in settings.items():
            if text is not None:
                self.spark.conf.set(name, text)

    def _driver(self) -> Pipelines:
        broker = self.every.broker
        return Pipelines(
            self.spark,
            {"kafka.bootstrap.servers": broker.bootstrap},
            str(broker.lake),
            SchemaRegistry(self.registry),
        )

    # -- what must be there -------------------------------------------------------------------------

    def _newest(self) -> dict[str, Place]:
        """Where the newest record of each key is, unless it is a tombstone."""
        found: dict[str, Place] = {}
        for place, record in sorted(self.records.items(), key=lambda each: each[1].timestamp_ms):
            if record.key_text is not None:
                found[record.key_text] = place
        return {key: at for key, at in found.items() if self.records[at].value.data is not None}

    def check(self) -> None:
        """Raw, typed, current and errors tables say what the model says."""
        options = {
            "kafka.bootstrap.servers": self.every.broker.bootstrap,
            "subscribe": f"{self.every.name},{self.current.name}",
        }
        raw = self.spark.read.format("kafka_ds").options(**options).load().collect()
        assert Counter(
            (row.topic, (row.partition, row.offset), row.key, row.value) for row in raw
        ) == Counter(
            (topic.name, place, each.key, each.value.data)
            for topic in (self.every, self.current)
            for place, each in self.records.items()
        )
        every = self._rows(self.every)
        self._check_every(every)
        self._check_current(self._rows(self.current))
        self._check_errors({place for place, row in every.items() if row[RESCUED] is not None})

    def _check_every(self, rows: dict[Place, dict[str, Any]]) -> None:
        assert rows.keys() == self.records.keys()
        for place, row in rows.items():
            record, is_replayed = self.records[place], place in self.fixed[self.every.name]
            assert record.matches(row, is_replayed=is_replayed), (place, record, row)
            assert row[KEY] == record.key_text

    def _check_current(self, rows: dict[Place, dict[str, Any]]) -> None:
        assert {row[KEY]: place for place, row in rows.items()} == self._newest()
        for place, row in rows.items():
            record, is_replayed = self.records[place], place in self.fixed[self.current.name]
            assert record.matches(row, is_replayed=is_replayed), (place, record, row)

    def _check_errors(self, rescued: set[Place]) -> None:
        of_every, of_current = self._errors(self.every), self._errors(self.current)
        assert sorted(each.place for each in of_every if each.rescued is not None) == sorted(
            rescued
        )
        for errors in (of_every, of_current):
            assert {each.place for each in errors} <= self.records.keys()
            assert max(Counter(errors).values(), default=1) == 1, errors
        keyless = [place for place, each in self.records.items() if each.key is None]
        assert sorted(each.place for each in of_current if NO_KEY in each.reason) == sorted(keyless)
        bad = {
            place
            for place, each in self.records.items()
            if each.value.data is not None and each.value.document is None
        }
        told = Counter(each.place for each in of_current if each.rescued is not None)
        assert max(told.values(), default=1) == 1
        fixed = self.fixed[self.current.name]
        assert not told.keys() & fixed
        assert bad - fixed <= told.keys()

    def view(self) -> None:
        """A scan takes both tables on to the last committed record."""
        self.keep()
        self.random.choice((self.send, self.commit))()
        for topic, check in (
            (self.every, self._check_every),
            (self.current, self._check_current),
        ):
            options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
            options["schemaRegistry"] = self.registry
            check(_by_place(kafka_ds.scan(self.spark, topic.name, typed=True, **options)))

    def _rows(self, topic: Topic) -> dict[Place, dict[str, Any]]:
        path = topic.broker.lake / "tables" / topic.name
        return _by_place(self.spark.read.format("delta").load(str(path)))

    def _errors(self, topic: Topic) -> list[Error]:
        path = topic.broker.lake / "tables" / f"{topic.name}__errors"
        if not path.exists():
            return []
        rows = self.spark.read.format("delta").load(str(path)).collect()
        return [
            Error((row["_partition"], row["_offset"]), row["reason"], row[RESCUED]) for row in rows
        ]


def _by_place(rows: DataFrame) -> dict[Place, dict[str, Any]]:
    found = [row.asDict(recursive=True) for row in rows.collect()]
    by_place = {(row["_partition"], row["_offset"]): row for row in found}
    assert len(by_place) == len(found)
    return by_place


def live(life: PipelineLife) -> None:
    """Everything that may happen, in any order, and a last look."""
    commands = [life.send, life.commit, life.abort, life.grow, life.view, life.replay]
    life.random.shuffle(commands)
    for command in (life.send, *commands):
        life.done[command.__name__] += 1
        command()
    life.keep()
    life.check()


@pytest.mark.parametrize("seed", seeds(LIVES_OF_CI))
@pytest.mark.timeout(900)
def test_tables_say_what_the_model_says(
    spark: SparkSession,
    topic: Topic,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(pipeline_module, "OFFSETS_PER_STEP", OFFSETS_PER_STEP)
    random = Random(seed)
    of_life = format_of(seed, random, lambda: Sender(topic, registry))
    settings = {
        "lake.table.value.format": of_life.value_format,
        "lake.table.key.format": of_life.key_format,
    }
    if seed % 3 == 1:
        settings["lake.table.partition.columns"] = "_date,_partition"
    current = Topic(topic.broker, f"{topic.name}-current")
    topic.create(partitions=1, **settings)
    current.create(partitions=1, **settings, **{"lake.table.mode": "current"})
    life = PipelineLife(spark, random, monkeypatch, of_life, registry, topic, current)
    try:
        live(life)
    except BaseException as problem:
        problem.add_note(f"seed {seed}, {life.done}")
        raise
    if seed < LIVES_OF_CI:
        assert {"killed", "overtaken", "replayed", "replay killed"} <= life.done.keys(), life.done
