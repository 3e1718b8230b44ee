"""Shell: serialization between the broker and its workers.

Both ends are kafka-ds of the same version, which a worker checks when it starts, and no other process has the socket.
So values are pickled. The bytes of memoryviews are passed out of band, without a copy.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from kafka_ds.process.buffers import Buffer

# The broker passes its version to its workers: the files may be replaced while it runs.
VERSION_VARIABLE = "KAFKA_DS_BROKER_VERSION"


def encode(value: object) -> tuple[bytes, list[memoryview]]:
    """The pickled value, and the buffers of its memoryviews, which are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    pickler = pickle.Pickler(body, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = _VIEWS
    pickler.dump(value)
    return body.getvalue(), [each.raw() for each in buffers]


def decode(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """The value, with memoryviews of these buffers."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - the other end is ours


def _view(buffer: memoryview) -> memoryview:
    return memoryview(buffer)


_VIEWS: Any = {memoryview: lambda view: (_view, (pickle.PickleBuffer(view),))}
