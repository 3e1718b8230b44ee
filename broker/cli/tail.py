"""Shell: `kafka-ds tail` and `kafka-ds consume`: print a topic's records.

Partitions are read in turn, OFFSETS_A_TURN offsets at a time; records of one partition are in order. The end offsets
are polled every POLL_SECONDS, for committed records unless told otherwise. Offsets that retention deletes meanwhile are
reported and skipped.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from broker.cli.options import ClusterTarget, CommandError, cluster_options, no_such_topic
from broker.cli.output import note, text_or_hex
from kafka_ds.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.client.fetch import CompletedFetch
    from kafka_ds.records.batch import Record

# Offsets read from one partition before the next one.
OFFSETS_A_TURN = 50_000
POLL_SECONDS = 0.2
POLL_TIMEOUT_MS = 30_000
_AGO = re.compile(r"-(\d+)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

PositionKind = Literal["beginning", "end", "offset", "last", "time"]
ShowRecord = Callable[[TopicPartition, "Record"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPosition:
    """A start position: an end of the log, an offset, a number of records before the end, or a time in ms."""

    kind: PositionKind
    number: int = 0


def parse_position(text: str) -> TailPosition:
    """Parse `beginning`, `end`, an offset, `-N` (last N), a time (ISO 8601, local without a zone) or `-15m`.
    Mistake.
    """
    word = text.strip().lower()
    if word in ("beginning", "earliest", "start"):
        return TailPosition(kind="beginning")
    if word in ("end", "latest"):
        return TailPosition(kind="end")
    if ago := _AGO.fullmatch(word):
        now = time.time()
        seconds = int(ago[1]) * _SECONDS[ago[2]]
        return TailPosition(kind="time", number=int((now - seconds) * 1_000))
    if re.fullmatch(r"-?\d{1,19}", word):
        number = int(word)
        kind: PositionKind = "last" if number < 0 else "offset"
        return TailPosition(kind=kind, number=abs(number))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(
            f"{text!r} is not a position: beginning, end, an offset, -N (the last N), 2026-11-20T12:00 or -15m"
        ) from None
    return TailPosition(kind="time", number=int(moment.timestamp() * 1_000))


def offsets_at(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    position: TailPosition,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """The offset of each partition at a position, within its log."""
    from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST

    wanted = list(partitions)

    def list_offsets(question: int) -> dict[TopicPartition, int]:
        answers = cluster.offsets(dict.fromkeys(wanted, question), read_committed=read_committed)
        return {place: answers[place].offset for place in wanted}

    if position.kind == "beginning":
        return list_offsets(EARLIEST)
    ends = list_offsets(LATEST)
    if position.kind == "end":
        return ends
    if position.kind == "time":
        found = list_offsets(position.number)
        return {place: at if at >= 0 else ends[place] for place, at in found.items()}
    starts = list_offsets(EARLIEST)
    back = position.kind == "last"
    return {
        place: max(starts[place], min(end, end - position.number if back else position.number))
        for place, end in ends.items()
    }


class TopicTail:
    """Reads a topic from a position on."""

    def __init__(
        self, cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> None:
        self._cluster = cluster
        self._partitions = list(partitions)
        self._read_committed = read_committed
        self.positions: dict[TopicPartition, int] = {}

    def begin(self, positions: dict[TopicPartition, int]) -> None:
        """Set the start offsets."""
        self.positions = dict(positions)

    def records(self, *, follows: bool) -> Iterator[tuple[TopicPartition, Record]]:
        """Existing records and, if `follows`, new ones; `positions` are after the returned records."""
        ends = self._ends()
        while True:
            ready = [place for place in self._partitions if self.positions[place] < ends[place]]
            for place in ready:
                end = min(ends[place], self.positions[place] + OFFSETS_A_TURN)
                yield from self._read(place, end, ends[place])
            if ready:
                continue
            if not follows:
                return
            time.sleep(POLL_SECONDS)
            ends = self._ends()

    def _ends(self) -> dict[TopicPartition, int]:
        return offsets_at(
            self._cluster,
            self._partitions,
            TailPosition(kind="end"),
            read_committed=self._read_committed,
        )

    def _read(
        self, place: TopicPartition, end: int, log_end: int
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """Read up to `end` and to the end of that batch."""
        from kafka_ds.client.fetch import Range, fetch_range
        from kafka_ds.errors import OffsetsGone

        wanted = Range(
            topic=place.topic,
            partition=place.partition,
            topic_id=self._cluster.topic(place.topic).topic_id,
            start=self.positions[place],
            end=end,
        )
        try:
            for fetched in fetch_range(
                self._cluster,
                wanted,
                poll_timeout_ms=POLL_TIMEOUT_MS,
                read_committed=self._read_committed,
            ):
                for record in records_of(fetched):
                    if self.positions[place] <= record.offset < log_end:
                        self.positions[place] = record.offset + 1
                        yield place, record
            self.positions[place] = max(end, self.positions[place])
        except OffsetsGone as gone:
            if gone.log_start <= gone.position:
                raise
            note(
                f"{place}: offsets {gone.position} to {gone.log_start - 1} were deleted by retention"
            )
            self.positions[place] = gone.log_start


def records_of(fetched: CompletedFetch) -> Iterator[Record]:
    """The data records of a fetch, without aborted ones."""
    from kafka_ds.records.batch import iterate_headers, read_records

    for at, header in iterate_headers(fetched.records):
        if header.is_control or any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last in fetched.aborted
        ):
            continue
        yield from read_records(fetched.records, at, header)


# -- output -------------------------------------------------------------------------------------


def _field(data: bytes | None) -> tuple[str | None, bool]:
    """A field as text, and whether that is hexadecimal."""
    if data is None:
        return None, False
    try:
        return data.decode("utf-8"), False
    except UnicodeDecodeError:
        return data.hex(), True


def record_json(place: TopicPartition, record: Record) -> str:
    """A record as a JSON line; binary fields are hexadecimal, as `key_encoding` and `value_encoding` say."""
    key, key_is_hex = _field(record.key)
    value, value_is_hex = _field(record.value)
    found: dict[str, Any] = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": [
            {"key": text_or_hex(name), "value": _field(data)[0]} for name, data in record.headers
        ],
    }
    if key_is_hex:
        found["key_encoding"] = "hex"
    if value_is_hex:
        found["value_encoding"] = "hex"
    return json.dumps(found, ensure_ascii=False)


def record_line(
    place: TopicPartition, record: Record, field: Callable[[bytes], str] = text_or_hex
) -> str:
    """A human-readable line: position, time, key and value."""
    when = ""
    if 0 <= record.timestamp <= 253_402_300_799_999:
        moment = datetime.fromtimestamp(record.timestamp / 1_000, UTC)
        when = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{record.timestamp % 1_000:03d}Z"
    where = click.style(f"{place}@{record.offset}", fg="cyan")
    key = "" if record.key is None else click.style(field(record.key), fg="yellow") + "  "
    value = click.style("null", dim=True) if record.value is None else field(record.value)
    return f"{where}  {when}  {key}{value}"


def _show_value(place: TopicPartition, record: Record) -> None:
    data = record.value if record.value is not None else b""
    sys.stdout.buffer.write(data + b"\n")


def _show_line(place: TopicPartition, record: Record) -> None:
    click.echo(record_line(place, record))


def _show_hex(place: TopicPartition, record: Record) -> None:
    click.echo(record_line(place, record, bytes.hex))


def _show_json(place: TopicPartition, record: Record) -> None:
    sys.stdout.write(record_json(place, record) + "\n")


def _show_function(as_json: bool, values_only: bool, as_hex: bool) -> ShowRecord:
    if as_json + values_only + as_hex > 1:
        raise CommandError("give only one of --json, --values and --hex")
    chosen = {as_json: _show_json, values_only: _show_value, as_hex: _show_hex}
    return chosen.get(True, _show_line)


# -- commands -----------------------------------------------------------------------------------

_READ_OPTIONS = (
    click.option(
        "--partition", "only", type=click.IntRange(min=0), metavar="P", help="Only this partition."
    ),
    click.option(
        "--max-messages", type=click.IntRange(min=0), metavar="N", help="Exit after N records."
    ),
    click.option("--no-follow", is_flag=True, help="Exit at the current end."),
    click.option(
        "--isolation",
        type=click.Choice(["read_committed", "read_uncommitted"]),
        default="read_committed",
        metavar="LEVEL",
        help="read_committed, the default, or read_uncommitted.",
    ),
    click.option("--values", "values_only", is_flag=True, help="Only the bytes of each value."),
    click.option("--hex", "as_hex", is_flag=True, help="Keys and values in hexadecimal digits."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per line."),
)


def _read_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_READ_OPTIONS):
        function = option(function)
    return function


def _partitions_of(cluster: Cluster, topic: str, only: int | None) -> list[TopicPartition]:
    found = cluster.topics([topic]).get(topic)
    if found is None:
        raise no_such_topic(topic, cluster.topics(None))
    if only is not None and only not in found.partitions:
        raise CommandError(f"topic {topic} has no partition {only}: it has {len(found.partitions)}")
    return [TopicPartition(topic, p) for p in sorted(found.partitions) if only in (None, p)]


def _run(reader: TopicTail, show: ShowRecord, *, max_messages: int | None, follows: bool) -> int:
    """Show records up to `max_messages`; returns their number."""
    shown = 0
    if max_messages == 0:
        return 0
    for place, record in reader.records(follows=follows):
        show(place, record)
        shown += 1
        if shown == max_messages:
            break
        if shown % 100 == 0 or follows:
            sys.stdout.flush()
    sys.stdout.flush()
    return shown


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "begin",
    default="end",
    show_default=True,
    metavar="POSITION",
    help="beginning, end, an offset, -N (the last N), a time (2026-11-20T12:00) or an age (-15m).",
)
@_read_options
@cluster_options
def tail(
    target: ClusterTarget,
    topic: str,
    begin: str,
    only: int | None,
    max_messages: int | None,
    no_follow: bool,
    isolation: str,
    values_only: bool,
    as_hex: bool,
    as_json: bool,
) -> None:
    """Show a topic's records, and follow new ones.

    \b
    Examples:
      kafka-ds tail orders                                # new records
      kafka-ds tail orders --from beginning --max-messages 10 --json
      kafka-ds tail orders --from -15m --no-follow | wc -l
    """
    position, show = parse_position(begin), _show_function(as_json, values_only, as_hex)
    read_committed = isolation == "read_committed"
    with target.cluster() as cluster:
        partitions = _partitions_of(cluster, topic, only)
        reader = TopicTail(cluster, partitions, read_committed=read_committed)
        reader.begin(offsets_at(cluster, partitions, position, read_committed=read_committed))
        if position.kind == "end" and not no_follow and sys.stderr.isatty():
            note("waiting for new records (--from beginning shows existing ones); Ctrl-C exits")
        _run(reader, show, max_messages=max_messages, follows=not no_follow)


@click.command(short_help="Show records from the beginning, or from a group's offsets.")
@click.argument("topic")
@click.option("--group", metavar="GROUP", help="Start at this group's offsets; commit at the end.")
@click.option(
    "--from",
    "begin",
    default="beginning",
    show_default=True,
    metavar="POSITION",
    help="The start in partitions without a committed offset, as for tail.",
)
@_read_options
@cluster_options
def consume(
    target: ClusterTarget,
    topic: str,
    group: str | None,
    begin: str,
    only: int | None,
    max_messages: int | None,
    no_follow: bool,
    isolation: str,
    values_only: bool,
    as_hex: bool,
    as_json: bool,
) -> None:
    """Show a topic's records from the beginning, or from a group's committed offsets.

    With --group it reads all partitions by itself and commits once, when it exits by --max-messages, --no-follow or
    Ctrl-C. A run that is killed commits nothing, so its records are read again. The group must have no members.

    \b
    Examples:
      kafka-ds consume orders --no-follow --values > orders.jsonl
      kafka-ds consume orders --group audit --max-messages 100
    """
    from kafka_ds.client.admin import Admin

    position, show = parse_position(begin), _show_function(as_json, values_only, as_hex)
    read_committed = isolation == "read_committed"
    with target.cluster() as cluster:
        admin = Admin(cluster)
        partitions = _partitions_of(cluster, topic, only)
        start = offsets_at(cluster, partitions, position, read_committed=read_committed)
        if group is not None:
            if not admin.describe_group(group).is_empty:
                raise CommandError(f"group {group} has members: stop them, or read without --group")
            committed = admin.committed_offsets(group)
            start.update({p: committed[p] for p in partitions if p in committed})
        reader = TopicTail(cluster, partitions, read_committed=read_committed)
        reader.begin(start)
        try:
            _run(reader, show, max_messages=max_messages, follows=not no_follow)
        finally:
            sys.stdout.flush()
            if group is not None and reader.positions != start:
                admin.commit_offsets(group, reader.positions)
