"""Pure: the table of options for docs/spark.md; a test keeps the page true.

Rules of this file: what an option is called and does is said once, in `options.OPTIONS` and
`sink.options.SINK_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_ds.sink.options import SINK_OPTIONS
from kafka_ds.source.options import OPTIONS

MARK = "## Options\n"


def render() -> str:
    """The part of the page that begins with ``MARK``."""
    return (
        f"{MARK}\nNames are case-insensitive. `kafka.bootstrap.servers` and one of `subscribe`, "
        f"`subscribePattern`, `assign` are required.\n\n{_table(OPTIONS)}\n"
        "Of a write, where `kafka.bootstrap.servers` is required, and `topic` or a column of that name:\n\n"
        f"{_table(SINK_OPTIONS)}"
    )


def _table(options: Mapping[str, str]) -> str:
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in options.items())
    return f"| option | what |\n| --- | --- |\n{rows}"
