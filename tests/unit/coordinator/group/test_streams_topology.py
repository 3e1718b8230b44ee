"""Topologies of streams groups (KIP-1071): what the cluster's topics make of them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinator.group.streams_topology import configured, topology_of, topology_value
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.streams_groups import HeartbeatTopology, StreamsGroupStatus
from tests.unit.coordinator.group.consumer_desk import Topics
from tests.unit.coordinator.group.streams_desk import internal, subtopology, topology, word_count

WRONG = StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS


def joined(*sources: str, repartition: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """A subtopology that joins all that it reads."""
    group = {
        "source_topics": list(range(len(sources))),
        "source_topic_regex": [],
        "repartition_source_topics": list(range(len(repartition))),
    }
    return subtopology(
        "join", *sources, repartition_source_topics=list(repartition), copartition_groups=[group]
    )


def test_internal_topics_get_the_sizes_that_they_need() -> None:
    found = configured(topology_of(word_count()), Topics(lines=3))
    assert found.tasks == {"0": 3, "1": 3}
    assert found.sizes == {"words": 3, "counts": 3}
    assert [(t.name, t.num_partitions, t.replication_factor) for t in found.missing] == [
        ("counts", 3, -1),
        ("words", 3, -1),
    ]
    assert found.missing[0].configs == (("cleanup.policy", "compact"),)
    assert found.problem == (
        StreamsGroupStatus.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: counts, words",
    )


def test_a_topology_with_all_its_topics_has_tasks() -> None:
    found = configured(topology_of(word_count()), Topics(lines=3, words=3, counts=3))
    assert found.problem is None and not found.missing and found.tasks == {"0": 3, "1": 3}


@pytest.mark.parametrize(
    ("sizes", "said", "status", "text"),
    [
        (
            {},
            word_count(),
            StreamsGroupStatus.MISSING_SOURCE_TOPICS,
            "Source topics lines are missing.",
        ),
        (
            {},
            topology(subtopology("0", "a", "b", "c", "d", "e")),
            StreamsGroupStatus.MISSING_SOURCE_TOPICS,
            "Source topics a, b, c and 2 additional topics are missing.",
        ),
        (
            {"lines": 3, "words": 2},
            word_count(),
            WRONG,
            "Existing topic counts has different number of partitions: expected 3, found 4",
        ),
        (
            {"a": 2, "b": 3},
            topology(joined("a", "b")),
            WRONG,
            "Following topics do not have the same number of partitions: [{a=2, b=3}]",
        ),
        (
            {"a": 2},
            topology(
                subtopology("0", "a", repartition_sink_topics=["r"]),
                joined("a", repartition=(internal("r", 3),)),
            ),
            WRONG,
            "Number of partitions [3] of repartition topic [r] doesn't match number of partitions [2] "
            "of the source topic.",
        ),
        (
            {"a": 2},
            topology(
                subtopology("0", "a", repartition_sink_topics=["r", "s"]),
                joined(repartition=(internal("r", 3), internal("s", 4))),
            ),
            WRONG,
            "Following topics do not have the same number of partitions: [{r=3, s=4}]",
        ),
    ],
)
def test_topics_that_do_not_fit_are_named(
    sizes: dict[str, int], said: HeartbeatTopology, status: StreamsGroupStatus, text: str
) -> None:
    topics = Topics(**sizes)
    if "words" in sizes:
        topics.make("counts", 4)
        topics.grow("words", 3)
    found = configured(topology_of(said), topics)
    assert found.problem == (status, text) and not found.tasks and not found.missing


def test_copartitioned_repartition_topics_are_of_one_size() -> None:
    said = topology(
        subtopology("0", "a", repartition_sink_topics=["r"]),
        subtopology("1", "b", repartition_sink_topics=["s"]),
        joined(repartition=(internal("r"), internal("s"))),
    )
    assert configured(topology_of(said), Topics(a=2, b=5)).sizes == {"r": 5, "s": 5}


def test_a_fixed_number_of_partitions_is_for_all_that_are_joined() -> None:
    said = topology(
        subtopology("0", "a", repartition_sink_topics=["r", "s"]),
        joined(repartition=(internal("r", 7), internal("s"))),
    )
    found = configured(topology_of(said), Topics(a=2))
    assert found.sizes == {"r": 7, "s": 7} and found.tasks == {"0": 2, "join": 7}


def test_repartition_topics_may_follow_each_other() -> None:
    said = topology(
        subtopology("0", repartition_source_topics=[internal("r")], repartition_sink_topics=["s"]),
        subtopology("1", repartition_source_topics=[internal("s")]),
        subtopology("2", "a", repartition_sink_topics=["r"]),
    )
    assert configured(topology_of(said), Topics(a=4)).sizes == {"r": 4, "s": 4}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            topology(
                subtopology(
                    "0", repartition_source_topics=[internal("r")], repartition_sink_topics=["r"]
                )
            ),
            "There may be loops in the topology",
        ),
        (
            topology(subtopology("0", repartition_source_topics=[internal("r")])),
            "never used as a sink topic",
        ),
        (topology(subtopology("0")), "No source topics found for subtopology 0"),
    ],
)
def test_a_topology_that_no_topics_could_make_work_is_refused(
    said: HeartbeatTopology, text: str
) -> None:
    found = configured(topology_of(said), Topics())
    assert found.refusal is not None and text in found.refusal and not found.is_ready


def test_a_copartition_group_names_sources() -> None:
    group = {"source_topics": [1], "source_topic_regex": [], "repartition_source_topics": []}
    with pytest.raises(KafkaError, match="names no source topic") as caught:
        topology_of(topology(subtopology("0", "a", copartition_groups=[group])))
    assert caught.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_the_order_of_a_list_does_not_matter() -> None:
    one = topology_of(topology(joined("a", "b"), subtopology("0", "d", "c")))
    other = topology_of(topology(subtopology("0", "c", "d"), joined("b", "a")))
    assert one == other and topology_of(topology_value(one)) == one
    assert one.required_topics() == {"a", "b", "c", "d"}
