"""`kafka-ds` as a process, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A whole demo on a busy machine.
TIMEOUT_S = 240.0
# Compiled code is nobody's setting: to make it anew takes half a minute.
CACHE = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command said, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def complaint(self) -> str:
        """The one line of a mistake."""
        assert self.status != 0, self.output
        assert self.errors.count("\n") == 1, self.errors
        assert self.errors.startswith("kafka-ds: ")
        return self.errors.removeprefix("kafka-ds: ").rstrip("\n")


class CommandLine:
    """Runs commands against one cluster, in an environment that has none of the person's own settings."""

    def __init__(self, bootstrap: str | None, home: Path, **environment: str) -> None:
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("KAFKA_DS_")},
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            **CACHE,
            **environment,
        }
        if bootstrap is not None:
            self._environment["KAFKA_DS_BOOTSTRAP_SERVER"] = bootstrap

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Start one that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "broker.cli", *words],
            text=True,
            env=self._environment,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )

    def run(
        self,
        *words: str,
        typed: str | bytes = "",
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Done:
        """Run one to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "broker.cli", *words],
            input=typed.encode() if isinstance(typed, str) else typed,
            capture_output=True,
            env={**self._environment, **(environment or {})},
            timeout=TIMEOUT_S,
            check=False,
            cwd=cwd,
        )
        return Done(
            status=done.returncode,
            output=done.stdout.decode(),
            errors=done.stderr.decode(),
        )

    def ok(self, *words: str, typed: str | bytes = "", cwd: Path | None = None) -> str:
        """What one prints that succeeds."""
        done = self.run(*words, typed=typed, cwd=cwd)
        assert done.status == 0, done.errors
        return done.output

    def json(self, *words: str) -> Any:
        """What it prints with --json."""
        return json.loads(self.ok(*words, "--json"))

    def records(self, *words: str) -> list[dict[str, Any]]:
        """The records that `tail` or `consume` gives, one object a line."""
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]
