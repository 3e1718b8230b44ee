"""Shell: kafka-ds, the library that broker and Spark data source share; its public names.

Public names are imported on first use, since the broker imports this package and must not load PySpark or Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ds.version import VERSION as __version__

if TYPE_CHECKING:
    from kafka_ds.source.datasource import KafkaDataSource, register
    from kafka_ds.source.report import scan_report
    from kafka_ds.source.scan import scan
    from kafka_ds.source.stream_offset import offsets_behind_latest

__all__ = [
    "KafkaDataSource",
    "__version__",
    "offsets_behind_latest",
    "register",
    "scan",
    "scan_report",
]
_MODULES = {
    "offsets_behind_latest": "kafka_ds.source.stream_offset",
    "scan": "kafka_ds.source.scan",
    "scan_report": "kafka_ds.source.report",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        from kafka_ds.source.pyspark_version import check_pyspark

        check_pyspark()
        return getattr(import_module(_MODULES.get(name, "kafka_ds.source.datasource")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
