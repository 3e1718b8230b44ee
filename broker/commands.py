"""Shell: what `python -m broker` does: run a broker or a unit of them, bring empty disks back from the lake, or take
over the data directories of an Apache Kafka; `kafka-ds` runs the same.

The log goes to standard error (`kafka_ds.process.log_lines`); standard output gets the one line `ready <host>:<port>`,
or what was restored or taken over. A mistake of the user is one line and exit status 1. SIGTERM and SIGINT stop cleanly
with status 0; a second one kills.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from broker.compiled.finder import use_build
from broker.config.loader import BrokerConfig, brokers_of, from_given, load, read_given
from broker.config.unit_settings import PROCESSES
from kafka_ds.process import log_lines
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemClock, SystemDisk, SystemNetwork, raise_open_files_limit
from kafka_ds.version import VERSION

if TYPE_CHECKING:
    from broker.adoption.kafka_dirs import Track
    from broker.broker_server import BrokerServer
    from broker.config.unit_settings import GivenSettings
    from broker.kafka_broker import KafkaBroker
    from broker.read_replica.server import ReadReplica, ReadReplicaServer
    from broker.unit.member import UnitMember

log = logging.getLogger("broker")

RESTORE = "restore"
ADOPT = "adopt"
# A broker of a unit, as the unit starts it.
MEMBER = "member"
# Objects that live as long as the broker make full collections dear; most garbage here has no cycles.
GC_THRESHOLDS = (20_000, 20, 50)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a broker until it is stopped, restores its disks, or adopts Kafka's; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [ADOPT]:
        return _parsed_adopt(given[1:])
    if given[:1] == [MEMBER]:
        return _exit_status_of(_run_member)
    if given[:1] == [RESTORE]:
        parsed = _parser(
            RESTORE, "Bring the empty disks of a broker back from the lake."
        ).parse_args(given[1:])
        return restore_disks(parsed.properties, parsed.override, _print)
    parser = _parser(
        None,
        "Run a kafka-ds broker, or several as one unit. Subcommands: restore (bring empty disks back from the lake), "
        "adopt (take over the data directories of an Apache Kafka); each has its own --help.",
    )
    parser.add_argument("--processes", metavar="N", help=f"the number of brokers: {PROCESSES}")
    parsed = parser.parse_args(given)
    return run(parsed.properties, parsed.override, parsed.processes)


def run(properties: str | None, overrides: Sequence[str], processes: object = None) -> int:
    """Run a broker, or a unit of `processes`, until it is stopped; returns the exit status."""
    more = () if processes is None else (f"{PROCESSES}={processes}",)
    return _exit_status_of(lambda: _run(_known_file(properties), [*overrides, *more]))


def restore_disks(
    properties: str | None,
    overrides: Sequence[str],
    say: Callable[[str], object],
    report: Callable[[int, int], object] | None = None,
) -> int:
    """Bring the disks of a broker that does not run back from the lake; the exit status.

    `report` is called now and then with the numbers of restored and of all partitions, but not for a unit.
    """

    def work() -> None:
        _, brokers = _brokers(properties, overrides)
        for _, config in brokers:
            _log_as(config)
            _run_loop(_restore(config, say, report if len(brokers) == 1 else None))

    return _exit_status_of(work)


def adopt_directories(
    properties: str | None,
    overrides: Sequence[str],
    say: Callable[[str], object],
    *,
    topic_configs: Sequence[str] = (),
    metadata_log_dir: str | None = None,
    dry_run: bool = False,
    track: Track | None = None,
) -> int:
    """Adopt data directories of Apache Kafka, and report what was found; returns the exit status."""

    def work() -> None:
        config = load(properties, overrides)
        if config.broker_processes > 1:
            raise ConfigError(
                f"{PROCESSES}={config.broker_processes}: Kafka's directories are one broker's: set {PROCESSES}=1"
            )
        _log_as(config)
        from broker.adoption.adopt import adopt, parse_topic_configs
        from broker.adoption.kafka_dirs import logged
        from broker.lake_store import open_exclusive

        adopt(
            config,
            SystemDisk(),
            open_exclusive,
            say,
            topic_configs=parse_topic_configs(topic_configs),
            metadata_log_dir=metadata_log_dir,
            dry_run=dry_run,
            track=track or logged(SystemClock()),
        )

    return _exit_status_of(work)


def _exit_status_of(work: Callable[[], int | None]) -> int:
    """Do it; a mistake of the user is printed, one line each. Returns the exit status."""
    log_lines.set_up(log_lines.TEXT)
    try:
        return work() or 0
    except ConfigError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"kafka-ds: {line}\n")
        return error.exit_status
    except KeyboardInterrupt:  # Before the signal handlers are set.
        return 1


def _brokers(
    properties: str | None, overrides: Sequence[str]
) -> tuple[BrokerConfig, list[tuple[GivenSettings, BrokerConfig]]]:
    """The configuration of a file, and the settings and configuration of each broker of it."""
    from broker.unit.folders import check_single, check_unit

    given = read_given(properties, overrides)
    config = from_given(given)
    log_lines.set_up(config.log_format)
    brokers = brokers_of(given, config, socket.gethostname())
    (check_single if len(brokers) == 1 else check_unit)(config, SystemDisk())
    return config, brokers


def _run(properties: str | None, overrides: Sequence[str]) -> int:
    config, brokers = _brokers(properties, overrides)
    if len(brokers) == 1:
        return _run_broker(config)
    from broker.banner import unit_banner
    from broker.unit.supervisor import run_unit

    log_lines.set_level(log_lines.ROOT, config.log_level)
    configs = [each for _, each in brokers]
    paths = {name: path for each in configs for name, path in _absolute(each).items()}
    for line in unit_banner(configs, paths):
        log.info("%s", line)
    _log_build()
    return 0 if run_unit([given for given, _ in brokers], config) else 1


def _run_broker(config: BrokerConfig, member: UnitMember | None = None) -> int:
    _log_as(config)
    _run_loop(_serve(config, member))
    return 0


def _run_member() -> int:
    from broker.unit.member import take_place

    member = take_place()
    return _run_broker(from_given(member.given), member)


def _log_as(config: BrokerConfig) -> None:
    log_lines.set_up_broker(config.log_format, config.node_id, config.log_level)


def _known_file(properties: str | None) -> str | None:
    """A word that is no file's name was meant to be a subcommand."""
    if properties and properties.isalpha() and not os.path.exists(properties):
        instead = (
            f"use kafka-ds {properties}"
            if properties in (RESTORE, ADOPT)
            else "there are restore and adopt"
        )
        raise ConfigError(f"{properties} is neither a file nor a subcommand of broker: {instead}")
    return properties


def _run_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _parser(subcommand: str | None, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m broker{f' {subcommand}' if subcommand else ''}",
        description=description,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kafka-ds {VERSION}")
    parser.add_argument(
        "properties", nargs="?", metavar="server.properties", help="settings, by Kafka's names"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="key=value",
        help="a setting that wins over the file; may be repeated",
    )
    return parser


def _parsed_adopt(words: Sequence[str]) -> int:
    parser = _parser(ADOPT, "Take over the data directories of an Apache Kafka.")
    parser.add_argument(
        "--topic-config",
        action="append",
        default=[],
        metavar="topic:key=value",
        help="a setting of a topic, which wins over what Kafka's metadata say; may be repeated",
    )
    parser.add_argument(
        "--metadata-log-dir",
        metavar="folder",
        help="where Kafka's own metadata log lies, if not in one of log.dirs",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="look, say what there is, do nothing"
    )
    parsed = parser.parse_args(words)
    return adopt_directories(
        parsed.properties,
        parsed.override,
        _print,
        topic_configs=parsed.topic_config,
        metadata_log_dir=parsed.metadata_log_dir,
        dry_run=parsed.dry_run,
    )


def loop_factory() -> Callable[[], Any] | None:
    """uvloop's event loop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], Any] = uvloop.new_event_loop
    return factory


async def _serve(config: BrokerConfig, member: UnitMember | None) -> None:
    # Here, not above: a wrong setting is reported without waiting for the imports.
    from broker.banner import banner
    from broker.broker_server import BrokerServer
    from broker.compiled.metrics import compiled_samples
    from broker.event_loop import EventLoopTimes
    from broker.read_replica.server import ReadReplicaServer
    from kafka_ds.records import machine_code

    if member is None:
        for line in banner(config, _absolute(config)):
            log.info("%s", line)
        _log_build()
    raise_open_files_limit()
    machine_code.build_in_background()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    serves = ReadReplicaServer if config.lake_read_only else BrokerServer
    node: BrokerServer | ReadReplicaServer = serves(
        config, SystemClock(), SystemDisk(), SystemNetwork()
    )
    times = EventLoopTimes()
    node.metrics.add_source(times.samples)
    node.metrics.add_source(compiled_samples)
    looking = loop.create_task(times.run(), name="event loop's times")

    def stop(number: int) -> None:
        log.info("shutting down: %s", signal.Signals(number).name)
        stopping.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if member is not None:
        member.begin(stopping.set, node.metrics.samples)
    broker = await _started(node, stopping)
    if broker is None:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    host, port = node.bound_address
    log.info("serving %s:%d in cluster %s", host, port, broker.metadata.cluster_id)
    if member is not None:
        member.say_ready(host, port)
    else:
        sys.stdout.write(f"ready {host}:{port}\n")
        sys.stdout.flush()
    why = await _ended(node, stopping)
    await node.stop()
    looking.cancel()
    log.info("shut down completed")
    if why is not None:
        raise why


def _log_build() -> None:
    """Say whether this process has compiled modules, and why a build is not used."""
    used = use_build()
    # Most brokers have no build, and nothing is wrong with that.
    level = logging.INFO if used.modules else logging.DEBUG
    log.log(logging.WARNING if used.is_fault else level, "%s", used.says)


def _absolute(config: BrokerConfig) -> dict[str, str]:
    """The absolute path of each folder that the settings name."""
    paths = [*config.log_dirs, *([config.lake_uri] if "://" not in config.lake_uri else [])]
    return {path: os.path.abspath(path) for path in paths}


async def _restore(
    config: BrokerConfig,
    say: Callable[[str], object],
    report: Callable[[int, int], object] | None,
) -> None:
    """Restore the disks of a stopped broker from the lake, and report what was restored."""
    from broker.broker_server import BrokerServer
    from broker.restore import check, restore
    from kafka_ds.delta.store.uri import open_store

    raise_open_files_limit()
    disk = SystemDisk()
    check(config, disk, open_store)
    node = BrokerServer(config, SystemClock(), disk, SystemNetwork())
    await restore(node, say, report)


async def _started(
    node: BrokerServer | ReadReplicaServer, stopping: asyncio.Event
) -> KafkaBroker | ReadReplica | None:
    """Start a node, which may have to wait for its cluster; None if it was stopped meanwhile."""
    starting: asyncio.Future[KafkaBroker | ReadReplica] = asyncio.ensure_future(node.start())
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if starting.done():
        return await starting
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return None


async def _ended(
    node: BrokerServer | ReadReplicaServer, stopping: asyncio.Event
) -> BaseException | None:
    """Wait until the node is stopped, or fails; returns why it failed."""
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((stop, node.failed), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return node.failed.result() if node.failed.done() else None
