"""Pure: what stands around a message: the length, and the headers of requests and responses.

- A frame, here, is what follows the four bytes of length. Its header has tags where the message is
  flexible (KIP-482), but the client id is never compact, and the response of ApiVersions never has
  tags: a client reads it before it knows what it talks to (KIP-511).
- The header of a version that is not declared is read as far as all versions agree, so that the
  caller can refuse it by correlation id; the position is of no use then.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from kafka_ds.protocol.codec import Buffer, decode, write_parts
from kafka_ds.protocol.errors import MalformedFrame, UnknownApiKey
from kafka_ds.protocol.messages import REQUESTS
from kafka_ds.protocol.reader_source import skip_tags
from kafka_ds.protocol.types import message_info

M = TypeVar("M")

API_VERSIONS_KEY = 18

_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_LENGTH = struct.Struct(">i")
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
_LENGTH_CORRELATION_AND_TAGS = struct.Struct(">iix")


class RequestHeader(NamedTuple):
    """The API and the client; `client_id` is null in some clients."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@lru_cache(maxsize=1024)  # not without a bound: the version comes from the other side
def _request_has_tags(api_key: int, version: int) -> bool | None:
    """Whether the request header has tags; None where the version is not declared."""
    info = message_info(REQUESTS[api_key])
    return version in info.flexible if version in info.versions else None


def _response_has_tags(cls: type, version: int) -> bool:
    info = message_info(cls)
    return version in info.flexible and info.key != API_VERSIONS_KEY


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request, and the position where its body begins."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        if api_key not in REQUESTS:
            raise UnknownApiKey(f"no API has the key {api_key}")
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
    """A request with its length and header, in one piece."""
    info = message_info(type(message))
    assert info.key is not None, "what is stored has no request header"
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
    size = sum(memoryview(part).nbytes for part in parts)
    _LENGTH.pack_into(out, 0, size - _LENGTH.size)
    return parts
