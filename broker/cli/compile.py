"""Shell: `kafka-ds compile`: compiles what small requests run through, for this installation, user and Python."""

from __future__ import annotations

import time

import click

from broker.cli.options import CommandError
from broker.cli.output import awaiting, note


@click.command("compile", short_help="Compile the broker's most used modules.")
@click.option("--delete", is_flag=True, help="Delete what was compiled: brokers run interpreted.")
def compile_broker(delete: bool) -> None:
    """Compile the modules that small requests run through, so that these take less CPU.

    It takes a minute or two, and needs the extra `compiled` (mypy and setuptools), a C compiler and Python's headers.
    Brokers of this user use the build from their next start, until the installation changes; then they say so and run
    interpreted. The build is in the user's cache ($XDG_CACHE_HOME or ~/.cache).

    \b
    Examples:
      kafka-ds compile
      sudo -u kafka XDG_CACHE_HOME=/var/cache/kafka-ds kafka-ds compile
      kafka-ds compile --delete
    """
    from broker.compiled.build import CannotCompile, build, delete_builds

    if delete:
        for place in delete_builds():
            note(f"deleted {place}")
        return
    begin_s = time.monotonic()
    with awaiting("compiling"):
        try:
            place = build()
        except CannotCompile as error:
            raise CommandError(str(error)) from None
    note(f"compiled, in {time.monotonic() - begin_s:.0f} s: {place}")
