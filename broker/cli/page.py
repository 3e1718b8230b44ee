"""Shell: writes docs/reference/cli.md from the commands' help.

Usage: ``python -m broker.cli.page > docs/reference/cli.md``. Options that all commands share are described once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc

import click

from broker.cli.main import program
from broker.cli.options import SHARED

HEAD = """# The command `kafka-ds`

This page is generated from the commands' own help (`python -m broker.cli.page > docs/reference/cli.md`).

`pip install` puts `kafka-ds` on the path; `python -m broker.cli` is the same.

- The result is on standard output: a table, or JSON with `--json`. Everything else goes to standard error.
- The exit status is 0, 1 after an error, 2 after wrong usage, 130 after Ctrl-C.
- An error is one line on standard error. If no broker answers, the command fails within 20 seconds.
- If a partition has no leader, or its leader cannot be reached, the command says so on standard error
  after two seconds, and fails after 20 seconds (`default.api.timeout.ms` of `--command-config`).

## Selecting the cluster

Commands that use a cluster take these options, before or after the command's own words:

| option | |
| --- | --- |
"""
PROFILES = """
A profile is a table in `~/.config/kafka-ds/profiles.toml` (or the file that `$KAFKA_DS_PROFILES` names):

```toml
[prod]
bootstrap-server = "broker-1:9093,broker-2:9093"
command-config = "/etc/kafka-ds/prod.properties"
lake = "s3://bucket/lake"
```

The command line wins over the profile, the profile over the environment. The file of
`--command-config` has the settings that Kafka's own tools take:

```properties
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/kafka-ds/authority.pem
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="...";
```
"""


def render() -> str:
    """The page."""
    options = (each for each in program.params if isinstance(each, click.Option))
    rows = [_row(each) for each in options if each.name in SHARED]
    lines = [HEAD.rstrip("\n"), *rows, PROFILES.rstrip("\n")]
    for words, command in commands(program):
        lines += ["", *_section(words, command)]
    return "\n".join(lines) + "\n"


def commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with their words, in the order of the help."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def _section(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    yield f"## kafka-ds {' '.join(words)}"
    yield ""
    text, _, examples = cleandoc(command.help or "").partition("\n\b\n")
    yield from (" ".join(part.split()) + "\n" for part in text.strip().split("\n\n"))
    context = click.Context(command, info_name=f"kafka-ds {' '.join(words)}")
    yield "```text"
    pieces = [p for p in command.collect_usage_pieces(context) if p != "[OPTIONS]"]
    yield " ".join([f"kafka-ds {' '.join(words)}", *pieces, "[OPTIONS]"])
    if examples:
        yield "```"
        yield ""
        yield "```sh"
        for line in examples.splitlines()[1:]:
            yield line.removeprefix("  ").rstrip()
    yield "```"
    options = [
        each
        for each in command.params
        if isinstance(each, click.Option) and each.name not in SHARED
    ]
    if options:
        yield ""
        yield "| option | |"
        yield "| --- | --- |"
        yield from map(_row, options)


def _row(option: click.Option) -> str:
    context = click.Context(click.Command("kafka-ds"))
    record = option.get_help_record(context)
    assert record is not None, option.name
    name, text = record
    cells = (f"`{name}`", re.sub(r"\s+", " ", text))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
