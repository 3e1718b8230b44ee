"""Shell: values as they cross between the broker and its workers.

Both ends are this program, of one version, as a worker makes sure that it starts; nobody else holds the socket. So
values cross as Python's own pickles, by the names of their classes. What a `memoryview` shows stays out of them and is
not copied.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from kafka_ds.ipc.request import Buffer

# The broker passes its version to its workers: files may be replaced under it.
VERSION_VARIABLE = "KAFKA_DS_BROKER_VERSION"


def encode(value: object) -> tuple[bytes, list[memoryview]]:
    """The value, and what its views show, which stays where it is."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    pickler = pickle.Pickler(body, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = _VIEWS
    pickler.dump(value)
    return body.getvalue(), [each.raw() for each in buffers]


def decode(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """The value again, whose views show these."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - the other end is ours


def _view(buffer: memoryview) -> memoryview:
    return memoryview(buffer)


_VIEWS: Any = {memoryview: lambda view: (_view, (pickle.PickleBuffer(view),))}
