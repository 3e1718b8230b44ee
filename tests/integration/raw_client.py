"""A minimal client for tests, which sends exactly the requests that it is given."""

from __future__ import annotations

import socket
from typing import Any

from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.messages import RESPONSES
from kafka_ds.protocol.types import message_info


class RawClient:
    """One connection."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 120) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: Any, version: int) -> None:
        """Send a request and wait for nothing."""
        self._sent += 1
        self.socket.sendall(encode_request(request, version, self._sent, "raw"))

    def receive(self, request: Any, version: int) -> Any:
        """The answer to the oldest unanswered request, which must be of the same API as `request`."""
        key = message_info(type(request)).key
        assert key is not None
        _, response = decode_response(RESPONSES[key], memoryview(self.receive_frame()), version)
        return response

    def receive_frame(self) -> bytearray:
        """The bytes of the next answer."""
        return self.receive_exactly(int.from_bytes(self.receive_exactly(4), "big"))

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and wait for its answer."""
        self.send(request, version)
        return self.receive(request, version)

    def is_closed_by_peer(self) -> bool:
        """Whether the broker ends the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            got = self.socket.recv_into(left)
            if not got:
                raise ConnectionError("the broker closed the connection")
            left = left[got:]
        return data
