"""What several tests use: batch, take_over, image_of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.adoption.adopt import adopt, parse_topic_configs
from broker.adoption.kafka_dirs import logged
from broker.config.loader import from_given
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.uri import open_store
from kafka_ds.process.system import SystemDisk
from kafka_ds.records.batch import Record, build_batch
from tests.fakes.clock import ManualClock
from tests.unit.adoption.kafka_folders import (
    NOW_MS,
)


def batch(offset: int, value: bytes = b"v", *, epoch: int = 3) -> bytes:
    return build_batch([Record(offset, NOW_MS, b"k", value)], leader_epoch=epoch)


def take_over(
    folder: Path,
    *data: Path,
    node_id: int = 1,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> list[str]:
    """The lines that are said."""
    given = {
        "node.id": str(node_id),
        "log.dirs": ",".join(map(str, data or [folder / "log"])),
        "lake.uri": str(folder / "lake"),
        **(settings or {}),
    }
    lines: list[str] = []
    adopt(
        from_given({name: (value, "test") for name, value in given.items()}),
        SystemDisk(),
        open_store,
        lines.append,
        topic_configs=parse_topic_configs(options.pop("topic_configs", ())),
        track=options.pop("track", logged(ManualClock())),
        **options,
    )
    return lines


def image_of(folder: Path) -> MetadataImage:
    return MetadataLog(open_store(str(folder / "lake"))).load()
