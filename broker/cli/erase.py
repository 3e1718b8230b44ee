"""Shell: `kafka-ds erase`: erases records from a topic, its tables and logs, and proves it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from broker.cli.options import ClusterTarget, CommandError, cluster_options, json_option, topic_of
from broker.cli.output import OutputRow, note, print_json, print_rows, progress
from kafka_ds.process.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.erasure.condition import RecordCondition
    from broker.erasure.erase import Erasure, ErasureReport
    from kafka_ds.client.admin import Admin
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.delta.store.store import Store

SHOWN_MAX = 5


@click.command(short_help="Erase records everywhere, and prove it.")
@click.option("--topic", "name", required=True, metavar="TOPIC", help="The topic.")
@click.option("--key", metavar="TEXT", help="The records' key.")
@click.option("--key-hex", metavar="HEX", help="The key's bytes as hexadecimal digits instead.")
@click.option(
    "--where",
    metavar="SQL",
    help="A condition on the columns of the topic's table instead (DuckDB).",
)
@click.option("--dry-run", is_flag=True, help="Only search and report where they are.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="The limit for searching, deleting and waiting until records have left the local logs.",
)
@click.option("--resume", is_flag=True, help="Finish a run that was killed on another machine.")
@click.option(
    "--lake",
    metavar="DIR",
    help="lake.uri, if this machine addresses it differently than the brokers.",
)
@json_option
@cluster_options
def erase(
    target: ClusterTarget,
    name: str,
    key: str | None,
    key_hex: str | None,
    where: str | None,
    dry_run: bool,
    timeout: float,
    resume: bool,
    lake: str | None,
    as_json: bool,
) -> None:
    """Erase all records with a key, or those that match a condition, and prove that none is left.

    They are erased from the topic's table with its older versions and residue, from the typed table and its errors
    table, and from the brokers' logs and caches. The exit status is 0 only if all of these files were searched and none
    contains such a record. The next run finishes one that was killed.

    \b
    Examples:
      kafka-ds erase --topic orders --key ada --dry-run
      kafka-ds erase --topic orders --key ada
      kafka-ds erase --topic orders --key-hex 616461 --json
      kafka-ds erase --topic orders --where "decode(value)->>'customer' = 'ada'"
    """
    if sum(each is not None for each in (key, key_hex, where)) != 1:
        raise click.UsageError("give one of --key, --key-hex and --where")
    wanted = _key(key, key_hex)
    condition = None if where is None else _condition(where)
    with target.cluster() as cluster, progress("searched", unit="files") as advance:
        erasure = _erasure(
            cluster, ClusterTarget(lake=lake).over(target), name, wanted, condition, advance
        )
        if dry_run:
            erasure.search(timeout)
        else:
            # Exit regularly, so that the topic's settings are restored.
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # As under nohup.
                    signal.signal(number, lambda number, _: sys.exit(128 + number))
            erasure.erase(timeout, takes_over=resume)
    account = erasure.account
    _print(account, as_json=as_json)
    _print_notes(account)
    if dry_run and account.left:
        note("nothing was changed: run it again without --dry-run")
    is_undone = dry_run and erasure.has_begun
    if is_undone:
        note(
            "the topic's settings are still changed by another run: "
            "if that was killed, run this again without --dry-run to finish it"
        )
    if account.is_proven and not is_undone:
        note(f"searched {counted(account.files, 'file')}: no such record is left")
    elif is_undone or (dry_run and account.left):
        raise click.exceptions.Exit(1)
    else:
        raise CommandError(_complaint(account, is_compacted=erasure.is_compacted))


def _key(text: str | None, digits: str | None) -> bytes | None:
    if digits is None:
        return None if text is None else os.fsencode(text)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise click.UsageError(f"--key-hex {digits}: not hexadecimal digits") from None


def _condition(text: str) -> RecordCondition:
    """Raises CommandError."""
    from broker.erasure.condition import InvalidCondition, RecordCondition

    try:
        return RecordCondition(text)
    except ModuleNotFoundError:
        raise CommandError("--where needs DuckDB: pip install duckdb") from None
    except InvalidCondition as problem:
        raise CommandError(f"--where: {problem}") from None


def _erasure(
    cluster: Cluster,
    target: ClusterTarget,
    name: str,
    key: bytes | None,
    condition: RecordCondition | None,
    advance: Callable[[int], object],
) -> Erasure:
    """Raises CommandError."""
    from broker.erasure.erase import Erasure
    from kafka_ds.client.admin import Admin

    admin = Admin(cluster)
    topic = topic_of(admin, name)
    store = _store(target, admin)
    if topic.is_internal:
        raise CommandError(f"topic {name} is internal")
    if cluster.topic_setting(name, "remote.storage.enable") != "true":
        raise CommandError(
            f"topic {name} is not tiered (remote.storage.enable): its records are only in local logs"
        )
    if cluster.topic_setting(name, "remote.log.copy.disable") == "true":
        raise CommandError(
            f"topic {name} is not copied (remote.log.copy.disable): its records cannot leave the local logs"
        )
    if any(each.is_offline for each in topic.partitions):
        raise CommandError(f"a partition of topic {name} has no leader")
    policy = cluster.topic_setting(name, "cleanup.policy") or ""
    return Erasure(
        cluster,
        store,
        topic,
        key=key,
        condition=condition,
        is_compacted="compact" in policy,
        say=note,
        advance=advance,
    )


def _store(target: ClusterTarget, admin: Admin) -> Store:
    """The cluster's lake, to write to. Raises CommandError."""
    from broker.cli.lake import Lake
    from broker.metadata.log import MetadataLog
    from kafka_ds.delta.store.uri import open_store

    where = target.lake_of(admin)
    Lake(where)  # Raises CommandError if it is no lake or unreachable.
    store = open_store(where)
    theirs = MetadataLog(store).load(begins=False).cluster_id
    ours = admin.describe_cluster().cluster_id
    if theirs != ours:  # In another lake the proof would be worthless.
        raise CommandError(
            f"{where} is the lake of cluster {theirs}, but the brokers belong to {ours}"
        )
    return store


def _print(account: ErasureReport, *, as_json: bool) -> None:
    left: dict[tuple[str, str], list[Any]] = {}
    for each in account.left:
        left.setdefault((each.place, each.kind), []).append(each)
    rows: list[OutputRow] = [
        {
            "place": place,
            "what": kind,
            "found": account.found[place, kind],
            "left": sum(each.records for each in left.get((place, kind), [])),
            "files": [each.path for each in left.get((place, kind), [])],
        }
        for place, kind in account.found
    ]
    if as_json:
        print_json(
            {
                "proven": account.is_proven,
                "files_searched": account.files,
                "not_searched": account.unsearched,
                "places": rows,
            }
        )
        return
    print_rows(rows, ("place", "what", "found", "left"), as_json=False)


def _print_notes(account: ErasureReport) -> None:
    for each in account.unsearched:
        note(f"kafka-ds: not searched: {each}")
    if account.expired_rows:
        note(
            f"{account.expired_rows} rows of typed tables are of records that have expired in the topic: "
            "they are found only if their key has the given form"
        )


def _complaint(account: ErasureReport, *, is_compacted: bool) -> str:
    from broker.erasure.search import SEGMENTS

    reasons = [
        f"{each.path}: {each.note or f'{each.records} in {each.kind}'}"
        for each in account.left[:SHOWN_MAX]
    ]
    more = len(account.left) - len(reasons)
    reasons += [f"and {counted(more, 'more file')}"] if more > 0 else []
    if account.unsearched:
        reasons.append(f"not searched: {counted(len(account.unsearched), 'place')}")
    if is_compacted and any(each.kind == SEGMENTS for each in account.left):
        reasons.append(
            "only compaction removes records from the logs of a compacted topic: "
            "write a tombstone for each key and run it again"
        )
    return f"the erasure is not proven:  {'; '.join(reasons)}"
