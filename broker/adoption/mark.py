"""Shell: that a data directory of Apache Kafka has been taken over, as its broker's first start asks.

`adopt` leaves a file in each directory, which says into which lake it was taken. At the first start after that, a
broker whose logs lie in a directory without this file, or of another lake, is refused: only `adopt` looks where logs
begin, and whether the lake reaches up to there. After the first start this is not checked again.
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
    """These directories' broker may start on this lake. Raises OSError."""
    for path in log_dirs:
        replace(disk, f"{path}/{names.ADOPTED}", lake_uri.encode(), durable=True)


def lake_of(disk: Disk, path: str) -> str | None:
    """Into which lake a directory was adopted, by its mark. Raises OSError."""
    mark = read_or_none(disk, f"{path}/{names.ADOPTED}")
    return None if mark is None else mark.decode(errors="replace")


def check_adopted(disk: Disk, image: MetadataImage, config: BrokerConfig) -> None:
    """Raises ConfigError where logs of Kafka's lie that `adopt` has not seen."""
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
            continue  # Opening the logs will report errors.
        if has_logs and adopted_into != lake_uri:
            raise ConfigError(
                f"log.dirs: {path} has logs of an Apache Kafka that have not been taken over into lake.uri={lake_uri}: "
                "run `python -m broker adopt` for this broker, too, before its first start"
            )
