"""Shell: `kafka-ds config check`: checks a broker's configuration before the broker starts with it."""

from __future__ import annotations

import socket
from typing import Any

import click

from broker.cli.options import json_option
from broker.cli.output import note, print_json, print_rows


@click.group()
def config() -> None:
    """Look at a broker's configuration."""


@config.command("check", short_help="Check a configuration and show its settings.")
@click.argument("properties", metavar="FILE")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that wins over the file; repeat it.",
)
@click.option("--all", "with_defaults", is_flag=True, help="Settings at their defaults, too.")
@json_option
def check(properties: str, overrides: tuple[str, ...], with_defaults: bool, as_json: bool) -> None:
    """Check a configuration without starting a broker: report all errors at once, or the values and their sources.

    An error is a line on standard error with the setting and the line of the file; the exit status is then 1. Of
    contradictory settings only one contradiction per subject is reported. Keys and certificates are read. Ports,
    folders and the lake are checked only when the broker starts. With broker.processes above 1, values in which its
    brokers differ are shown for each node.

    \b
    Examples:
      kafka-ds config check server.properties
      kafka-ds config check server.properties --override node.id=2 --all --json
    """
    from broker.config.loader import brokers_of, from_given, read_given
    from kafka_ds.process.settings import ConfigError

    try:
        given = read_given(properties, overrides)
        loaded = from_given(given)
        brokers = [config for _, config in brokers_of(given, loaded, socket.gethostname())]
        mistakes = _security_mistakes(loaded)
    except ConfigError as error:
        mistakes = str(error).splitlines()
    if mistakes:
        for line in mistakes:
            note(f"kafka-ds: {line}")
        raise click.exceptions.Exit(1)
    rows = _rows(loaded) if len(brokers) == 1 else _rows_of_unit(loaded, brokers)
    shown = [row for row in rows if with_defaults or row["origin"] != "default"]
    if as_json:
        print_json(shown)
        return
    columns = ("setting", "value", "default", "origin")
    print_rows(shown, columns if len(brokers) == 1 else ("node", *columns), as_json=False)
    note(f"no errors; {len(rows) - len(shown)} settings with default values are not shown")


def _security_mistakes(loaded: Any) -> list[str]:
    """What the keys, certificates and users of the listeners lack."""
    from broker.config.loader import placed
    from broker.security.authentication.listener_security import ListenerSecurity
    from kafka_ds.process.settings import ConfigError

    mistakes = []
    for listener, protocol in loaded.protocols.items():
        if protocol == "PLAINTEXT":
            continue
        try:
            ListenerSecurity(listener, loaded, lambda *_: None)
        except ConfigError as error:
            mistakes += str(placed(error, loaded, "listeners")).splitlines()
    return mistakes


def _rows_of_unit(loaded: Any, brokers: list[Any]) -> list[dict[str, Any]]:
    """The rows of the file's settings; instead of those in which brokers differ from it, one for each broker."""
    of_brokers = [(config.node_id, _rows(config)) for config in brokers]
    rows: list[dict[str, Any]] = []
    for at, row in enumerate(_rows(loaded)):
        theirs = [{"node": node_id, **found[at]} for node_id, found in of_brokers]
        is_units = all(each["origin"] == "default" for each in theirs)  # as metrics.port
        if is_units or all(found[at] == row for _, found in of_brokers):
            theirs = [{"node": None, **row}]
        rows += theirs
    return rows


def _rows(loaded: Any) -> list[dict[str, Any]]:
    from broker.config.describe import ConfigSource, describe_broker

    rows = []
    for each in describe_broker(loaded):
        given = [s for s in each.synonyms if s.source is ConfigSource.STATIC_BROKER]
        default = next((s.value for s in each.synonyms if s.source is ConfigSource.DEFAULT), None)
        origin = "default"
        if given:
            # Another name may have set it, as log.retention.hours sets log.retention.ms.
            by_name = "" if given[0].name == each.name else f": {given[0].name}"
            origin = f"{loaded.origins.get(given[0].name, 'given')}{by_name}"
        hidden = each.is_sensitive and bool(given)
        rows.append(
            {
                "setting": each.name,
                "value": "(hidden)" if hidden else each.value,
                "default": default,
                "origin": origin,
            }
        )
    return rows
