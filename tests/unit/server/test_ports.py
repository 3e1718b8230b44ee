"""A port that cannot be had is named by the setting that asks for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from broker.server.server import bind, cannot_listen
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemNetwork


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held.getsockname()[1]


def test_the_port_of_metrics(taken: int) -> None:
    told = (
        rf"^metrics\.port={taken}: failed to bind to 127\.0\.0\.1:{taken}: address already in use "
    )
    with pytest.raises(ConfigError, match=told):
        bind(SystemNetwork(), "127.0.0.1", taken, f"metrics.port={taken}")


def test_a_name_that_nobody_knows() -> None:
    told = cannot_listen(
        "listeners=A://b:1", ("b", 1), socket.gaierror(-2, "Name or service not known")
    )
    assert str(told) == "listeners=A://b:1: name or service not known"
