"""Shell: runs the brokers of a unit (`broker.processes`), each in a process of its own, and serves their metrics.

- A broker that does not start ends the unit, and so does one whose cluster was fenced. One that ends otherwise is
  logged with its status and started again, with a pause that doubles up to RESTART_PAUSE_MS_MAX: the others go on.
- The unit stops when it is told to (SIGTERM, SIGINT): all brokers at once, so that each leader moves once, to another
  machine. A second signal kills them. They stop as well when this process ends, however it does: the pipe by which each
  has its settings and is asked for metrics then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from broker.config.broker import BrokerConfig
from broker.config.unit_settings import GivenSettings
from broker.metadata.log import FencedCluster
from broker.metrics.names import MetricSample, gauge, meter
from broker.server.metrics_server import MetricsServer
from broker.server.server import bind
from broker.unit.member import NODE_LABEL
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.ipc.child import own_environment
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemNetwork

log = logging.getLogger(__name__)

RESTART_PAUSE_MS = 1_000
RESTART_PAUSE_MS_MAX = 30_000
# A broker that has run for so long is restarted after the shortest pause.
STEADY_SECONDS = 60.0
# Of a scrape's REQUEST_SECONDS_MAX; the texts are then joined and sent.
SCRAPE_SECONDS_MAX = 4.0

_UNIT = "kafka.server:type=BrokerUnit,name="
UP = gauge(
    f"{_UNIT}ProcessUp",
    "1 if this broker of the unit has answered with its metrics.",
    NODE_LABEL,
    ours=True,
)
RESTARTS = meter(
    f"{_UNIT}ProcessRestartsPerSec",
    "How often this broker of the unit was started again.",
    NODE_LABEL,
    ours=True,
)


class MemberProcess:
    """A running broker of a unit."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asked: dict[int, asyncio.Future[tuple[bytes, str] | None]] = {}
        self._last = 0
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        """Its address; cancelled if it ends before."""
        self._reading = loop.create_task(self._read())

    @classmethod
    async def start(cls, given: GivenSettings) -> MemberProcess:
        """Start a broker with these settings."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # No module of the folder that the unit was started in.
            "-m",
            "broker",
            "member",
            given["node.id"][0],  # for who looks at processes
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=own_environment(),
            start_new_session=True,  # Ctrl-C is for the unit.
        )
        log.info("broker %s is process %d", given["node.id"][0], process.pid)
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode() + b"\n")
        return cls(process)

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Its metrics in the format that the request accepts; None if it does not answer."""
        self._last += 1
        number = self._last
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(
                json.dumps({"number": number, "accept": accept}).encode() + b"\n"
            )
            return await asyncio.wait_for(future, SCRAPE_SECONDS_MAX)
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    def stop(self) -> None:
        """Let it stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Wait for its end; returns the exit status, or the negative number of a signal."""
        status = await self._process.wait()
        self._reading.cancel()
        self.ready.cancel()
        for future in self._asked.values():
            if not future.done():
                future.set_result(None)
        return status

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            head: dict[str, Any] = json.loads(line)
            try:
                body = await stdout.readexactly(head["bytes"])
            except asyncio.IncompleteReadError:
                return  # It died.
            if "ready" in head:
                self.ready.set_result(head["ready"])
            elif (future := self._asked.get(head["number"])) is not None and not future.done():
                future.set_result((body, head["type"]))


class _Place:
    """A broker of the unit, whatever process it has."""

    def __init__(self, given: GivenSettings) -> None:
        self.given = given
        self.node_id = given["node.id"][0]
        self.process: MemberProcess | None = None
        self.starts = 0

    async def start(self) -> MemberProcess:
        self.process = await MemberProcess.start(self.given)
        self.starts += 1
        return self.process

    async def ended(self, process: MemberProcess) -> int:
        status = await process.ended()
        self.process = None
        return status

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        return None if self.process is None else await self.process.metrics(accept)


class BrokerUnit:
    """The brokers of one file."""

    def __init__(self, given: Sequence[GivenSettings]) -> None:
        self._places = [_Place(each) for each in given]
        self._stopping = asyncio.Event()
        self._is_ready = False
        self._is_clean = True

    async def run(self, config: BrokerConfig) -> bool:
        """Run until the unit is stopped; returns whether all ended cleanly. Raises ConfigError.

        `config` is the file's.
        """
        loop = asyncio.get_running_loop()
        server: MetricsServer | None = None
        if config.metrics_port is not None:
            host, port = config.endpoints[0].host, config.metrics_port
            listener = bind(SystemNetwork(), host, port, f"metrics.port={port}")
            server = MetricsServer(self.metrics_text, listener)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if server is not None:
            await server.serve()
        keeping = [loop.create_task(self._keep(each)) for each in self._places]
        await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
        self._stop()
        await asyncio.wait(keeping)
        if server is not None:
            await server.stop()
        if errors := [error for each in keeping if (error := each.exception()) is not None]:
            raise errors[0]
        log.info("shut down completed")
        return self._is_clean

    async def metrics_text(self, accept: str) -> tuple[bytes, str]:
        """The metrics of all brokers, and those of the unit."""
        from broker.server.metrics_text import joined, text_of

        texts = await asyncio.gather(*(each.metrics(accept) for each in self._places))

        def samples() -> Iterator[MetricSample]:
            for place, text in zip(self._places, texts, strict=True):
                yield UP, (place.node_id,), int(text is not None)
                yield RESTARTS, (place.node_id,), max(0, place.starts - 1)

        own, content_type = await text_of(samples, accept)
        every = [own, *(text[0] for text in texts if text is not None)]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, joined, every), content_type

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._stopping.is_set():
            log.info("shutting down all brokers: %s", name)
            self._stop()
            return
        log.warning("killing all brokers: %s again", name)
        for each in self._places:
            if each.process is not None:
                each.process.kill()

    def _stop(self) -> None:
        self._stopping.set()
        for each in self._places:
            if each.process is not None:
                each.process.stop()

    async def _keep(self, place: _Place) -> None:
        """Run a broker until the unit stops. Raises ConfigError if it does not start, or is fenced for good."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(RESTART_PAUSE_MS, RESTART_PAUSE_MS_MAX)
        while not self._stopping.is_set():
            began_s = loop.time()
            how = await self._run(place)
            if how == _said(FencedCluster.exit_status):
                raise FencedCluster(
                    f"broker {place.node_id} was fenced by kafka-ds promote, as it says: the unit has stopped"
                )
            if self._stopping.is_set():
                return
            if not self._is_ready:
                raise ConfigError(
                    f"broker {place.node_id} did not start ({how}): the unit has stopped"
                )
            if loop.time() - began_s > STEADY_SECONDS:
                backoff.succeeded()
            pause_ms = backoff.failed(0)
            log.error(
                "broker %s has ended unexpectedly (%s); it is started again in %d ms",
                place.node_id,
                how,
                pause_ms,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_ms / 1000)

    async def _run(self, place: _Place) -> str:
        """Run a broker's process; returns how it ended."""
        try:
            process = await place.start()
        except OSError as error:
            return f"cannot run: {error}"
        process.ready.add_done_callback(lambda _: self._say_when_ready())
        if self._stopping.is_set():
            process.stop()
        status = await place.ended(process)
        if self._stopping.is_set() and status != 0:
            self._is_clean = False
            log.error("broker %s did not stop cleanly (%s)", place.node_id, _said(status))
        return _said(status)

    def _say_when_ready(self) -> None:
        """Say once that all brokers accept clients."""
        ready = [each.process.ready for each in self._places if each.process is not None]
        is_ready = [each.done() and not each.cancelled() for each in ready]
        if self._is_ready or is_ready != [True] * len(self._places):
            return
        self._is_ready = True
        log.info("all %d brokers serve clients", len(ready))
        sys.stdout.write(f"ready {ready[0].result()}\n")
        sys.stdout.flush()


def _said(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def run_unit(given: Sequence[GivenSettings], config: BrokerConfig) -> bool:
    """Run the brokers with these settings until they are stopped; returns whether all ended cleanly."""

    async def run() -> bool:
        return await BrokerUnit(given).run(config)

    return asyncio.run(run())
