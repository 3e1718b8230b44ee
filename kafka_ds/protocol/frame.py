"""Pure: frames: length, header, message.

- A frame, here, is what follows the length. Its header has tags if the message is flexible (KIP-482). But the client
  id is never compact, and the ApiVersions response never has tags: a client reads it before it knows the broker's
  versions (KIP-511).
- In a version that is not declared, only the fields that all versions have are read, so that the caller can refuse the
  request by its correlation id; the returned position is undefined then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode, write_parts
from kafka_ds.protocol.errors import MalformedFrame, UnknownApiKey
from kafka_ds.protocol.messages import REQUESTS
from kafka_ds.protocol.reader_source import skip_tags
from kafka_ds.protocol.types import message_info

# The length that precedes a frame on the wire.
LENGTH_BYTES = 4

M = TypeVar("M")

API_VERSIONS_KEY = 18

_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_LENGTH = struct.Struct(">i")
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
_LENGTH_CORRELATION_AND_TAGS = struct.Struct(">iix")


class RequestHeader(NamedTuple):
    """The header of a request; some clients send a null `client_id`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@lru_cache(maxsize=1024)  # bounded: the version is the client's input
def _request_has_tags(api_key: int, version: int) -> bool | None:
    """Whether the request header has tags; None if the version is not declared."""
    info = message_info(REQUESTS[api_key])
    return version in info.flexible if version in info.versions else None


def _has_tags(cls: type, version: int) -> bool:
    info = message_info(cls)
    return version in info.flexible and info.key != API_VERSIONS_KEY


# Bounded: the version is one that the class has.
_response_has_tags: Callable[[type, int], bool] = cache(_has_tags)


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request, and the position where its body begins."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        if api_key not in REQUESTS:
            raise UnknownApiKey(f"unknown API key {api_key}")
        position = _HEAD.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise MalformedFrame("the client id runs past the end")
            client_id = str(frame[position:end], "utf-8")
            position = end
        if _request_has_tags(api_key, version):
            position = skip_tags(frame, position, len(frame))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"request header: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), position


def encode_response(message: Any, version: int, correlation_id: int) -> list[Any]:
    """A response with its length and header, as buffers in order."""
    tags = _response_has_tags(type(message), version)
    head = _LENGTH_CORRELATION_AND_TAGS if tags else _LENGTH_AND_CORRELATION
    return _with_length(message, version, bytearray(head.pack(0, correlation_id)))


def encode_request(
    message: Any, version: int, correlation_id: int, client_id: str | None = None
) -> bytes:
    """A request with its length and header, as bytes."""
    info = message_info(type(message))
    assert info.key is not None, "a stored message is not a request"
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    out = bytearray(4)
    out += _HEAD.pack(info.key, version, correlation_id, length)
    out += name
    if version in info.flexible:
        out.append(0)
    return b"".join(_with_length(message, version, out))


def decode_response(cls: type[M], frame: Buffer, version: int) -> tuple[int, M]:
    """The correlation id and the message of a response of this class."""
    try:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        position = _LENGTH.size
        if _response_has_tags(cls, version):
            position = skip_tags(frame, position, len(frame))
    except (struct.error, IndexError) as error:
        raise MalformedFrame(f"response header: {error}") from error
    return correlation_id, decode(cls, frame, version, position)


def _with_length(message: Any, version: int, out: bytearray) -> list[Any]:
    parts = write_parts(message, version, out)
    size = len(out)
    if len(parts) > 1:
        size = sum(map(len, parts))
    _LENGTH.pack_into(out, 0, size - _LENGTH.size)
    return parts
