"""Three brokers as processes on one lake: the controller is killed, paused, asked to end, and so are others."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.image import MetadataImage
from tests.integration.cluster_image import PATIENCE_S, image_of, produce
from tests.processes import BrokerCluster, BrokerProcess, cluster, wait_until


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """One cluster for all of these tests; each leaves it with three brokers that live."""
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def admin(brokers: BrokerCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})


def create(brokers: BrokerCluster, name: str, partitions: int = 3) -> None:
    """A topic, as soon as there is somebody to decide on it."""
    client = admin(brokers)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            made = client.create_topics([NewTopic(name, partitions)], request_timeout=5)
            made[name].result(PATIENCE_S)
            return
        except KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return  # A try before this one, whose answer was lost.
            if time.monotonic() > deadline:
                raise


def other_controller(brokers: BrokerCluster, epoch: int) -> MetadataImage:
    found: list[MetadataImage] = []

    def is_there() -> bool:
        found.append(image_of(brokers))
        return found[-1].controller_epoch > epoch

    wait_until("another controller", is_there, timeout_s=PATIENCE_S)
    return found[-1]


def is_unfenced(brokers: BrokerCluster, node_id: int) -> bool:
    return not image_of(brokers).brokers[node_id].fenced


def log_of(broker: BrokerProcess) -> str:
    return broker.log_file.read_text(errors="replace")


def test_the_controller_and_another_broker_are_killed_and_come_back(brokers: BrokerCluster) -> None:
    create(brokers, "before", 6)
    produce(brokers, "before", 6)
    first = image_of(brokers)
    brokers[first.controller_id].kill()
    second = other_controller(brokers, first.controller_epoch)
    assert second.controller_id != first.controller_id
    # The claim says that the last one is dead, and moves what can be moved.
    assert second.brokers[first.controller_id].fenced
    create(brokers, "between")
    produce(brokers, "between", 3)
    brokers[first.controller_id].start()
    assert is_unfenced(brokers, first.controller_id)
    assert image_of(brokers).controller_epoch == second.controller_epoch
    follower = next(
        n for n in brokers.brokers if n not in (first.controller_id, second.controller_id)
    )
    brokers[follower].kill()
    wait_until("its end", lambda: not is_unfenced(brokers, follower), timeout_s=PATIENCE_S)
    create(brokers, "without")
    assert follower not in {
        replica
        for registration in image_of(brokers).topics["without"].partitions.values()
        for replica in registration.replicas
    }
    brokers[follower].start()
    assert is_unfenced(brokers, follower)
    produce(brokers, "before", 6)
    last = image_of(brokers)
    assert last.controller_epoch == second.controller_epoch
    assert {each.leader_recovery_state for each in last.topics["before"].partitions.values()} == {0}


def test_a_controller_that_was_paused_past_its_session_decides_nothing_more(
    brokers: BrokerCluster,
) -> None:
    create(brokers, "before-pause", 3)
    first = image_of(brokers)
    paused = brokers[first.controller_id]
    os.kill(paused.pid, signal.SIGSTOP)
    try:
        second = other_controller(brokers, first.controller_epoch)
        assert second.brokers[first.controller_id].fenced
        # What it is asked for while it does not run lies in its socket when it goes on.
        only = AdminClient({"bootstrap.servers": paused.bootstrap, "log_level": 0})
        asked = only.create_topics([NewTopic("late", 1)], operation_timeout=30, request_timeout=45)
        create(brokers, "meanwhile-pause")
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    wait_until(
        "its resignation", lambda: "Resigned as controller" in log_of(paused), timeout_s=PATIENCE_S
    )
    wait_until(
        "its return", lambda: is_unfenced(brokers, first.controller_id), timeout_s=PATIENCE_S
    )
    try:
        asked["late"].result(PATIENCE_S)  # Sent on to the controller, or refused.
    except KafkaException as error:
        # An error of the client's own (below 0) says that the answer was lost, not what became of the request.
        assert error.args[0].code() < 0 or "late" not in image_of(brokers).topics, error
    last = image_of(brokers)
    assert last.controller_id == second.controller_id
    assert last.controller_epoch == second.controller_epoch
    # Every broker of the cluster lives: the old one's view, by which all others were silent, came to nothing.
    assert not any(each.fenced for each in last.brokers.values())
    assert "meanwhile-pause" in last.topics
    create(brokers, "after-pause")
    produce(brokers, "before-pause", 3)


def test_brokers_that_are_stopped_end_cleanly_and_begin_again(brokers: BrokerCluster) -> None:
    create(brokers, "t", 6)
    produce(brokers, "t", 6)
    epochs = {n: each.broker_epoch for n, each in image_of(brokers).brokers.items()}
    for node_id in brokers.brokers:
        assert brokers[node_id].stop() == 0
    stopped = image_of(brokers)
    assert [each.fenced for each in stopped.brokers.values()].count(True) >= 2
    brokers.start()
    produce(brokers, "t", 6)
    again = image_of(brokers)
    for node_id, broker in again.brokers.items():
        assert broker.broker_epoch > epochs[node_id]
    for registration in again.topics["t"].partitions.values():
        assert registration.leader_recovery_state == 0
