"""Shell: marks adopted data directories; the first start checks the mark.

`adopt` leaves a file in each directory that names the lake. The broker's first start is refused if a directory with
logs lacks the file or names another lake: only `adopt` checks log starts, and that the lake is not behind the logs.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.loader import BrokerConfig
from broker.metadata.image import MetadataImage
from kafka_ds.process.seams import Disk
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments import names
from kafka_ds.segments.files import read_or_none, replace


def mark_adopted(disk: Disk, log_dirs: Sequence[str], lake_uri: str) -> None:
    """Mark directories as adopted into this lake. Raises OSError."""
    for path in log_dirs:
        replace(disk, f"{path}/{names.ADOPTED}", lake_uri.encode(), durable=True)


def lake_of(disk: Disk, path: str) -> str | None:
    """The lake that a directory was adopted into, or None. Raises OSError."""
    mark = read_or_none(disk, f"{path}/{names.ADOPTED}")
    return None if mark is None else mark.decode(errors="replace")


def check_adopted(disk: Disk, image: MetadataImage, config: BrokerConfig) -> None:
    """Check before the first start that all logs were adopted. Raises ConfigError."""
    known, lake_uri = image.brokers.get(config.node_id), config.lake_uri
    if known is None or known.incarnation_id != NO_UUID:
        return
    for path in config.log_dirs:
        try:
            has_logs = disk.exists(path) and any(
                map(names.parse_folder_name, disk.list_names(path))
            )
            adopted_into = lake_of(disk, path)
        except OSError:
            continue  # Opening the logs reports errors.
        if has_logs and adopted_into != lake_uri:
            raise ConfigError(
                f"log.dirs: {path} has logs of an Apache Kafka that were not adopted into lake.uri={lake_uri}: "
                "run `kafka-ds adopt` for this broker, too, before its first start"
            )
