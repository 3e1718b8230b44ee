"""Shell: where leader epochs begin and end. Leaders know (KIP-320); where they do not, the tables do.

Within one history epochs rise with offsets, so an epoch ends at the first record of a later one. A leader that lost its
disk knows only its own epoch, while it still serves older rows from the lake; for earlier epochs the table's rows are
asked. If neither can tell, that is an error: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kafka_ds.errors import OptionError, PlanDiverged, TopicGone
from kafka_ds.protocol.messages.offsets import EARLIEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import same_topic
from kafka_ds.source.filters.intervals import HIGHEST, NONE, Intervals
from kafka_ds.source.options.limits import AtLeaderEpoch, names
from kafka_ds.source.plan.brokers import Brokers
from kafka_ds.source.plan.scan_plan import LakeFile, LakeView, PartitionView

if TYPE_CHECKING:
    from kafka_ds.source.stream_offset import StreamOffset

UNKNOWN_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the brokers hold of one partition, pinned: offsets [start, end), under this leader epoch."""

    topic_id: bytes
    start: int
    end: int
    leader_epoch: int


# -- filters on the leader epoch ----------------------------------------------------------------


def offsets_of_epochs(
    brokers: Brokers, views: Sequence[PartitionView], wanted: Intervals | None
) -> dict[TopicPartition, Intervals]:
    """The offsets that were written under the requested epochs, if the leader knows them."""
    if wanted is None:
        return {}
    epochs = {v.topic_partition: v.leader_epoch for v in views if v.leader_epoch >= 0}
    known = _with_history(brokers, epochs)
    found = dict.fromkeys(known, NONE)
    for low, high in wanted:
        started = _ends_of(brokers, known, low - 1, unknown=0)
        ended = _ends_of(brokers, known, high - 1, unknown=HIGHEST)
        for tp, spans in found.items():
            found[tp] = spans.union(Intervals.of((started[tp], ended[tp])))
    return found


def _with_history(
    brokers: Brokers, leader_epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Those whose leader knows the epochs of its whole log."""
    first = brokers.answers(dict.fromkeys(leader_epochs, EARLIEST), committed=False)
    return {tp: n for tp, n in leader_epochs.items() if first[tp].leader_epoch != UNKNOWN_EPOCH}


def _ends_of(
    brokers: Brokers, leader_epochs: Mapping[TopicPartition, int], epoch: int, *, unknown: int
) -> dict[TopicPartition, int]:
    """Where this epoch ends, 0 for those below the first and HIGHEST for the present one and later.

    A leader under which nothing was written yet does not know epochs above the last written one.
    """
    ends = {tp: HIGHEST if epoch >= current else 0 for tp, current in leader_epochs.items()}
    questions = {tp: epoch for tp, current in leader_epochs.items() if 0 <= epoch < current}
    for tp, end in brokers.cluster.epoch_ends(questions).items() if questions else ():
        ends[tp] = end.end_offset if end.end_offset >= 0 else unknown
    return ends


# -- the option asOfLeaderEpoch -----------------------------------------------------------------


def ends_as_of(
    brokers: Brokers,
    limit: AtLeaderEpoch,
    bounds: Mapping[TopicPartition, Bounds],
    lakes: Mapping[TopicPartition, LakeView],
    *,
    fsspec: str = "",
) -> dict[TopicPartition, int]:
    """Where the records of the requested epochs end, at most where the partitions do.

    Raises:
        OptionError: other partitions than there are, an epoch in the future, or one whose end neither leader nor table
            knows.
    """
    wanted = dict(limit.epochs) if limit.epochs is not None else dict.fromkeys(bounds, limit.epoch)
    if set(wanted) != set(bounds):
        raise OptionError(
            f"option '{limit.option}' must name every partition; named are {names(wanted)}, "
            f"there are {names(bounds)}"
        )
    newest = {tp: each.leader_epoch for tp, each in bounds.items() if each.leader_epoch >= 0}
    _refuse_future(limit, wanted, newest)
    past = {tp: current for tp, current in newest.items() if wanted[tp] < current}
    found = {tp: each.end for tp, each in bounds.items() if each.leader_epoch >= 0}
    answered = _with_history(brokers, past) if past else {}
    for epoch in {wanted[tp] for tp in answered}:
        same = {tp: current for tp, current in answered.items() if wanted[tp] == epoch}
        ends = _ends_of(brokers, same, epoch, unknown=HIGHEST)
        found |= {tp: min(end, bounds[tp].end) for tp, end in ends.items()}
    unknown = (set(bounds) - set(found)) | (set(past) - set(answered))
    found |= {
        tp: _end_in_table(lakes.get(tp), wanted[tp], bounds[tp].end, fsspec) for tp in unknown
    }
    unanswered = {tp for tp in set(past) - set(answered) if found[tp] > bounds[tp].end}
    if unanswered:
        raise OptionError(
            f"option '{limit.option}': where the epochs end is not known of {names(unanswered)}, whose leaders lost "
            "their history, and of which the lake does not hold the end"
        )
    return {tp: min(end, bounds[tp].end) for tp, end in found.items()}


def _refuse_future(
    limit: AtLeaderEpoch, wanted: Mapping[TopicPartition, int], newest: Mapping[TopicPartition, int]
) -> None:
    """Refuse future epochs: rows would change with each query, although the user asked for a fixed log.

    One epoch for all partitions may be above those of some. If only the table is read, the newest is not known.
    """
    future = {tp for tp, current in newest.items() if wanted[tp] > current}
    if not future or (limit.epochs is None and len(future) < len(wanted)):
        return
    listed = ", ".join(f"{wanted[tp]} of {tp} (newest: {newest[tp]})" for tp in sorted(future))
    raise OptionError(f"option '{limit.option}' names epochs that there were not yet: {listed}")


def _end_in_table(lake: LakeView | None, epoch: int, end: int, fsspec: str) -> int:
    """The first offset in the table that a later epoch wrote; one above ``end`` where there is none."""
    if lake is None:
        return end + 1
    found = end + 1
    # Files overlap if an engine rewrote them, so none has information about another.
    for file in lake.within(Intervals.of((0, HIGHEST))):
        if file.first_offset < found:
            later = _later(file, epoch, fsspec)
            found = found if later is None else min(found, later)
    return found


def _later(file: LakeFile, epoch: int, fsspec: str) -> int | None:
    """The first offset of the file that a later epoch than this one wrote."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from kafka_ds.topic.files.parquet import open_at

    with open_at(file.path, fsspec) as opened:
        rows = opened.read(columns=["offset", "leader_epoch"], use_threads=False)
    late = rows.filter(pc.greater(rows["leader_epoch"], pa.scalar(epoch, pa.int32())))
    least: int | None = pc.min(late["offset"]).as_py()
    return least


# -- what a plan was pinned to ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBounds:
    """The bounds under the epochs of a plan, and why partitions do not hold what it was pinned to."""

    bounds: dict[TopicPartition, Bounds]
    problems: dict[TopicPartition, Exception]


def held_to(
    brokers: Brokers, bounds: Mapping[TopicPartition, Bounds], pinned: StreamOffset
) -> PinnedBounds:
    """Compare the present state with the pinned one: the same topic, the same records below each end.

    The returned bounds have the plan's leader epochs: no record of a later one is the plan's, and if a leader does not
    know its history, tasks see it by their rows.
    """
    found: dict[TopicPartition, Bounds] = {}
    problems: dict[TopicPartition, Exception] = {}
    for tp, position in pinned.positions.items():
        each, topic_id = bounds.get(tp), pinned.topic_ids[tp[0]]
        if each is None:
            problems[tp] = TopicGone(f"{tp} was deleted since it was planned")
        elif not same_topic(topic_id, each.topic_id):
            problems[tp] = TopicGone(
                f"topic {tp[0]} was deleted and created again since it was planned"
            )
        else:
            found[tp] = replace(each, leader_epoch=position.epoch)
    later = {
        tp: pinned.positions[tp].epoch
        for tp in found
        if 0 <= pinned.positions[tp].epoch < bounds[tp].leader_epoch
    }
    ends = brokers.cluster.epoch_ends(later) if later else {}
    for tp, end in ends.items():
        if 0 <= end.end_offset < pinned.positions[tp].offset:
            problems[tp] = PlanDiverged(
                f"{tp} was planned up to {pinned.positions[tp].offset} under leader epoch "
                f"{later[tp]}, whose records now end at {end.end_offset}: plan the query again"
            )
            found.pop(tp)
    return PinnedBounds(bounds=found, problems=problems)
