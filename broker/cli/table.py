"""Shell: `kafka-ds table`: the Delta table of a topic: schema, version, history, files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from broker.cli.lake import Lake
from broker.cli.options import ClusterTarget, cluster_options, json_option
from broker.cli.output import OutputRow, bytes_text, note, print_facts, print_json, print_rows


@click.group()
def table() -> None:
    """Look at the Delta tables of topics."""


@table.command("show", short_help="Show the schema, history and files of a table.")
@click.argument("topic")
@click.option(
    "--lake", metavar="DIR", help="lake.uri: a folder or a bucket. Default: the cluster's."
)
@click.option(
    "--history", "versions", type=click.IntRange(min=0), default=10, show_default=True, metavar="N",
    help="The last N commits.",
)  # fmt: skip
@click.option("--files", "with_files", is_flag=True, help="List the files of the newest version.")
@json_option
@cluster_options
def show(
    target: ClusterTarget,
    topic: str,
    lake: str | None,
    versions: int,
    with_files: bool,
    as_json: bool,
) -> None:
    """Show a topic's table: location, schema, history, rows and files by partition.

    No broker is needed if --lake is given.

    \b
    Examples:
      kafka-ds table show orders
      kafka-ds table show orders --lake data/lake --history 3 --files --json
    """
    where = target.lake_uri(lake)
    opened = Lake(where, broker_topics=lambda: target.broker_topics(lake))
    found = opened.topic(topic)
    files = _files(found)
    schema = [{"column": f.name, "type": _type_name(f.type)} for f in found.schema().fields]
    partitions = _by_partition(files)
    history = [_commit(each) for each in (found.history(versions) if versions else [])]
    facts = {
        "topic": topic,
        "location": found.table_uri,
        "version": found.version(),
        "rows": sum(each["rows"] or 0 for each in files),
        "files": len(files),
        "bytes": sum(each["bytes"] for each in files),
    }
    if not files:
        note(opened.why_no_rows(topic))
    if as_json:
        lists = {"schema": schema, "partitions": partitions, "history": history}
        print_json({**facts, **lists, **({"file_list": files} if with_files else {})})
        return
    print_facts({**facts, "bytes": bytes_text(facts["bytes"])})
    click.echo()
    print_rows(schema, ("column", "type"), as_json=False)
    sections = [(partitions, ("partition", "rows", "files", "size", "first_offset", "last_offset"))]
    sections.append(
        (history, ("version", "time", "operation", "rows", "files_added", "files_removed"))
    )
    if with_files:
        columns = ("path", "partition", "rows", "size", "first_offset", "last_offset")
        sections.append((files, columns))
    for rows, columns in sections:
        if not rows:
            continue
        click.echo()
        sized = [{**row, "size": bytes_text(row.get("bytes"))} for row in rows]
        print_rows(sized, columns, as_json=False)


def _type_name(kind: Any) -> str:
    """A short name of a type."""
    name = str(getattr(kind, "type", kind))
    if name == "array":
        return f"array<{_type_name(kind.element_type)}>"
    if name == "struct":
        return f"struct<{', '.join(f'{f.name}: {_type_name(f.type)}' for f in kind.fields)}>"
    return name


def _files(found: Any) -> list[OutputRow]:
    """The files of the newest version, in offset order."""
    import pyarrow as pa

    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    rows = [
        {
            "path": each["path"],
            "partition": each.get("partition.partition"),
            "rows": each.get("num_records"),
            "bytes": each["size_bytes"],
            "first_offset": each.get("min.offset"),
            "last_offset": each.get("max.offset"),
        }
        for each in actions
    ]
    return sorted(rows, key=lambda row: (row["partition"] or 0, row["first_offset"] or 0))


def _by_partition(files: list[OutputRow]) -> list[OutputRow]:
    found: dict[int, list[OutputRow]] = {}
    for each in files:
        found.setdefault(each["partition"], []).append(each)
    return [
        {
            "partition": partition,
            "rows": sum(each["rows"] or 0 for each in rows),
            "files": len(rows),
            "bytes": sum(each["bytes"] for each in rows),
            "first_offset": min((r["first_offset"] for r in rows if r["first_offset"] is not None), default=None),
            "last_offset": max((r["last_offset"] for r in rows if r["last_offset"] is not None), default=None),
        }
        for partition, rows in found.items()
    ]  # fmt: skip


def _commit(entry: OutputRow) -> OutputRow:
    """A row of the history, from Delta's commitInfo."""
    metrics = entry.get("operationMetrics") or {}
    moment = datetime.fromtimestamp(entry.get("timestamp", 0) / 1_000, UTC)

    def number(*names: str) -> int | None:
        return next((int(metrics[name]) for name in names if metrics.get(name) is not None), None)

    return {
        "version": entry.get("version"),
        "time": moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z"),
        "operation": entry.get("operation"),
        "rows": number("numOutputRows", "numDeletedRows"),
        "files_added": number("numFiles", "numAddedFiles"),
        "files_removed": number("numRemovedFiles"),
        "engine": entry.get("engineInfo"),
        "parameters": entry.get("operationParameters"),
    }
