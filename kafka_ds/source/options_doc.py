"""Pure: the table of options for docs/spark.md; a test keeps the page true.

Rules of this file: what an option is called and does is said once, in `options.OPTIONS`.
"""

from __future__ import annotations

from kafka_ds.source.options import OPTIONS

MARK = "## Options\n"


def render() -> str:
    """The part of the page that begins with ``MARK``."""
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in OPTIONS.items())
    return (
        f"{MARK}\nNames are case-insensitive. `kafka.bootstrap.servers` and one of `subscribe`, "
        f"`subscribePattern`, `assign` are required.\n\n| option | what |\n| --- | --- |\n{rows}"
    )
