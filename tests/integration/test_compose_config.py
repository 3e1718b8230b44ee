"""docker-compose.yml as Compose itself reads it: what ``docker compose config`` says, with or without a Docker here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
# The loader behind `docker compose config`, a library with a command of its own. Built once into .cache.
LOADER = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
BUILD_TIMEOUT_S = 900


def command() -> list[str]:
    """What prints the whole file with everything filled in, and ends with an error for a file that Compose refuses."""
    docker = shutil.which("docker")
    if docker is not None:
        asked = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return [docker, "compose", "--file", str(FILE), "config"]
    built = ROOT / ".cache" / "compose" / LOADER.rpartition("@")[2] / "cmd"
    if not built.exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("neither `docker compose` nor Go, which builds Compose's own loader")
        environment = {**os.environ, "GOBIN": str(built.parent)}
        subprocess.run([go, "install", LOADER], env=environment, check=True)
    return [str(built), str(FILE)]


def loaded(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_compose_takes_the_file(tmp_path: Path) -> None:
    words = command()
    found = loaded(words)
    assert found.returncode == 0, found.stderr
    ours, theirs = yaml.safe_load(FILE.read_text()), yaml.safe_load(found.stdout)
    assert theirs["services"].keys() == ours["services"].keys()
    for name, service in ours["services"].items():
        assert theirs["services"][name].get("command") == service.get("command"), name
        assert "image" in theirs["services"][name], name
    assert theirs["configs"]["cluster"]["content"] == ours["configs"]["cluster"]["content"]
    # It does refuse: a word of ours that is none of Compose's.
    ours["services"]["spark"]["depends_on"]["broker-1"] = {"condition": "service_helthy"}
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(yaml.safe_dump(ours))
    refused = loaded([str(broken) if word == str(FILE) else word for word in words])
    assert refused.returncode != 0
    assert "depends_on.broker-1.condition" in refused.stderr
