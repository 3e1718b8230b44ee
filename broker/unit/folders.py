"""Shell: whether a broker's folders are where its settings say, as `broker.processes` changes where that is."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker.config.broker import BrokerConfig
from broker.config.unit_settings import PROCESSES, log_dirs_of
from kafka_ds.process.seams import Disk
from kafka_ds.process.settings import ConfigError
from kafka_ds.segments.names import META_PROPERTIES

log = logging.getLogger(__name__)


def check_single(config: BrokerConfig, disk: Disk) -> None:
    """Refuse to begin beside the folders of a unit's brokers."""
    for outer, inner in zip(config.log_dirs, log_dirs_of(config, config.node_id), strict=True):
        owned = () if _has_owner(disk, outer) else _owned(disk, outer)
        if owned:
            alone = f"log.dirs={inner} for node.id={config.node_id} alone"
            raise ConfigError(
                f"log.dirs={outer} has the folders of brokers {_listed(owned)} of a unit: set {PROCESSES} as before, "
                f"or {alone if config.node_id in owned else 'other log.dirs'}"
            )


def check_unit(config: BrokerConfig, disk: Disk) -> None:
    """Refuse folders of a single broker, and warn of a unit's that are left out; `config` is the file's."""
    ids = range(config.node_id, config.node_id + config.broker_processes)
    for each in config.log_dirs:
        owned = _owned(disk, each)
        if _has_owner(disk, each):
            inner = f"{each.rstrip('/')}/{config.node_id}"
            remedy = f"move all that is in {each} to {inner}"
            if owned:  # Moved there, it would replace what a broker of the unit has.
                remedy = f"move all but the folders {_listed(owned)} away"
            raise ConfigError(
                f"log.dirs={each} is a single broker's, and with {PROCESSES}={config.broker_processes} node "
                f"{config.node_id} has {inner}: {remedy}, or set other log.dirs"
            )
        if left_out := owned - set(ids):
            log.warning(
                "log.dirs=%s has folders of brokers %s, which %s=%d does not start: move their partitions away first "
                "(kafka-reassign-partitions), or set it as before",
                each,
                _listed(left_out),
                PROCESSES,
                len(ids),
            )


def _owned(disk: Disk, folder: str) -> set[int]:
    """The numbers of the brokers with folders in this one."""
    try:
        names = disk.list_names(folder)
    except OSError:  # It is not there, or has failed, which brokers log when they start.
        return set()
    return {
        int(name) for name in names if name.isdecimal() and _has_owner(disk, f"{folder}/{name}")
    }


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _has_owner(disk: Disk, folder: str) -> bool:
    return disk.exists(f"{folder}/{META_PROPERTIES}")
