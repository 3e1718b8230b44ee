"""Shell: a broker's side of its unit (`broker.unit.supervisor`), by the pipes that are its standard input and output.

- The input's first line has the broker's settings. Each further line asks for its metrics.
- Where the input ends, the unit stops, or its process is gone, even by SIGKILL: then the broker stops, too. A thread
  notices, so that an event loop that stands still does not keep the broker alive.
- The output has a line of JSON when the broker is ready, and one before each text of metrics. Nothing else gets there:
  the broker's own standard output is its standard error from here on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from io import FileIO
from typing import Any

from broker.config.unit_settings import GivenSettings
from broker.metrics.names import Source
from kafka_ds.process.system import halt

log = logging.getLogger(__name__)

# How long a broker may take to stop before it is ended; docs/operations/kafka-ds.service waits longer.
STOP_SECONDS_MAX = 100.0
ANSWER_SECONDS_MAX = 10.0
# The label of a broker's metrics.
NODE_LABEL = "node_id"


class UnitMember:
    """The unit, as seen by one of its brokers."""

    def __init__(self, requests: FileIO, answers: FileIO) -> None:
        """Reads the settings; the files are unbuffered: a thread that waits holds no lock of theirs."""
        self._requests = requests
        self._answers = answers
        self._saying = threading.Lock()
        self.given: GivenSettings = {
            name: (text, place) for name, (text, place) in json.loads(requests.readline()).items()
        }

    def begin(self, stop: Callable[[], object], source: Source) -> None:
        """Answer the unit from now on; `stop` is called in the event loop when it ends."""
        loop = asyncio.get_running_loop()
        labels = {NODE_LABEL: self.given["node.id"][0]}

        async def text(accept: str) -> tuple[bytes, str]:
            from broker.server.metrics_text import text_of

            return await text_of(source, accept, labels)

        def listen() -> None:
            for line in self._requests:
                asked = json.loads(line)
                future = asyncio.run_coroutine_threadsafe(text(asked["accept"]), loop)
                try:
                    body, content_type = future.result(ANSWER_SECONDS_MAX)
                except Exception:
                    future.cancel()
                    log.exception("unexpected error while reading metrics")
                else:
                    self._say({"number": asked["number"], "type": content_type}, body)
            log.info("shutting down: the unit stops, or is gone")
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(stop)
            time.sleep(STOP_SECONDS_MAX)
            log.error("the broker did not stop in %d s", STOP_SECONDS_MAX)
            halt()

        threading.Thread(target=listen, name="unit", daemon=True).start()

    def say_ready(self, host: str, port: int) -> None:
        """Tell the unit that clients are accepted."""
        self._say({"ready": f"{host}:{port}"})

    def _say(self, head: dict[str, Any], body: bytes = b"") -> None:
        unsent = memoryview(json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body)
        # If nobody reads, the unit is gone, and the requests end.
        with self._saying, contextlib.suppress(OSError):
            while unsent:
                unsent = unsent[self._answers.write(unsent) :]


def take_place() -> UnitMember:
    """The unit at the other end of this process's standard streams."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return UnitMember(
        open(0, "rb", buffering=0, closefd=False),
        open(answers, "wb", buffering=0),
    )
