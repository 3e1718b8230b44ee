"""What lies in a broker for consumers that do not read their answers is known: all by TLS, else what no file has."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest

from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.messages import FetchResponse, MetadataRequest
from tests.in_process import batch_of, fetch_request, produce_request
from tests.integration.raw_client import RawClient
from tests.integration.secured_broker import HOST, TIMEOUT_S, SecuredBroker
from tests.processes import wait_until
from tests.requests import build

VALUE = bytes(900_000)
BATCHES = 12
# What sockets and TLS may hold of an answer, where it is not seen.
ELSEWHERE_BYTES_MAX = 6 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("slow")) as running:
        with RawClient(running.bootstrap("PLAINTEXT")) as client:
            client.ask(build(MetadataRequest, topics=[{"name": "t"}]), 12)
            for _ in range(BATCHES):
                written = client.ask(produce_request("t", batch_of([VALUE])), 9)
                assert not written.responses[0].partition_responses[0].error_code
        yield running


@pytest.mark.parametrize("listener", ["PLAINTEXT", "MUTUAL"])
def test_what_lies_in_memory_for_a_slow_reader_counts(broker: SecuredBroker, listener: str) -> None:
    with socket.socket() as bare:
        bare.settimeout(TIMEOUT_S)
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        bare.connect(broker.address(listener))
        connected = bare
        if listener == "MUTUAL":
            context = ssl.create_default_context(cafile=str(broker.authority.file))
            context.load_cert_chain(broker.authority.issue("slow").both_file)
            connected = context.wrap_socket(bare, server_hostname=HOST)
        whole = fetch_request("t", 0, partition_max_bytes=50 << 20, max_bytes=50 << 20)
        connected.sendall(encode_request(whole, 12, 1, "slow"))
        connections = broker.owner.server.connections
        least = BATCHES * len(VALUE) - ELSEWHERE_BYTES_MAX
        if listener == "PLAINTEXT":
            wait_until(
                "the answer to lie in its file",
                lambda: any(each.unsent_bytes()[0] > least for each in connections),
            )
            assert connections.unsent_bytes < 1000
        else:
            wait_until("the answer to lie there", lambda: connections.unsent_bytes > least)
        with connected.makefile("rb") as answer:
            data = answer.read(int.from_bytes(answer.read(4), "big"))
        _, response = decode_response(FetchResponse, memoryview(data), 12)
        assert len(response.responses[0].partitions[0].records) > BATCHES * len(VALUE)
        wait_until("nothing to lie there", lambda: not connections.unsent_bytes)
        connected.close()
