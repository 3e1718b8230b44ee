"""The images of the Dockerfile are built and run."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.compiled.modules import MODULES
from tests.pages import own_blocks

ROOT = Path(__file__).resolve().parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
PACKAGES = "python3,python3-dev,python3-pip,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# As the base image has it: python is what pip installs for, and pip may.
MAKE_ALIKE = "; ".join(
    (
        "ln -sf /usr/bin/python3 /usr/local/bin/python",
        "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED",
        "rm -rf /var/lib/apt/lists/*",
    )
)
# What this machine trusts, one file a certificate, is what Debian makes Java's trust store of as well.
TRUST = """
import pathlib, subprocess
end = "-----END CERTIFICATE-----"
*found, _ = pathlib.Path("/machine.crt").read_text().split(end)
for number, text in enumerate(found):
    pathlib.Path(f"/usr/local/share/ca-certificates/m{number}.crt").write_text(text.strip() + "\\n" + end + "\\n")
subprocess.run(["update-ca-certificates"], check=True)
"""


def missing_tools() -> list[str]:
    """The Debian packages that are needed and not installed."""
    return [tool for tool in ("buildah", "mmdebstrap") if shutil.which(tool) is None]


def docker_lines() -> tuple[list[str], list[str]]:
    """What docs/how-to/install.md says to type: the build, and the run."""
    (block,) = own_blocks("docs/how-to/install.md", __file__)
    build, run = (shlex.split(line) for line in block.code.splitlines())
    assert build[:2] == ["docker", "build"] and run[:2] == ["docker", "run"]
    return build[2:], run[2:]


class Builder:
    """Builds images below a folder; ``close`` removes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}

    def run(self, *words: str, timeout_s: float = 1200) -> str:
        """What ``buildah`` printed; AssertionError with the end of its output when it failed."""
        command = ["buildah", *self.options, *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self._environment,
            cwd=ROOT,
        )
        assert done.returncode == 0, (
            f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        return done.stdout.strip()

    def make_base(self) -> None:
        """The image that the Dockerfile begins with."""
        archive = self.folder / "base.tar"
        subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                f"--include={PACKAGES}",
                "bookworm",
                str(archive),
            ],
            check=True,
            timeout=1200,
        )
        container = self.run("from", "scratch")
        self.run("add", container, str(archive), "/")
        self.run("copy", container, str(CERTIFICATES), "/machine.crt")
        self.run("run", container, "--", "python3", "-c", TRUST)
        self.run("run", container, "--", "sh", "-c", MAKE_ALIKE)
        self.run("commit", container, BASE)
        self.run("rm", container)
        archive.unlink()

    def build(self, target: str) -> None:
        """One of the Dockerfile's images, under the name of its target."""
        self.run(
            "bud", "--quiet", "--pull-never", "--layers", "--target", target, "--tag", target, "."
        )

    def config(self, image: str) -> dict[str, Any]:
        """Entrypoint, Cmd, User, WorkingDir, Volumes and so on, as the image says them."""
        found: dict[str, Any] = json.loads(self.run("inspect", "--type", "image", image))
        config: dict[str, Any] = found["OCIv1"]["config"]
        return config

    def close(self) -> None:
        """Removes containers and images, and what they left mounted: else nobody can remove the folder."""
        self.run("rm", "--all")
        self.run("rmi", "--all", "--force")
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            mounted = line.split()[1]
            if Path(mounted).is_relative_to(self.folder):
                subprocess.run(["umount", "--lazy", mounted], check=True)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        bool(missing_tools()), reason=f"needs Debian's {' and '.join(missing_tools())}"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("images"))
    try:
        made.make_base()
        yield made
    finally:
        made.close()


def test_the_brokers_image_runs_as_its_page_says(builder: Builder, tmp_path: Path) -> None:
    build, run = docker_lines()
    builder.run("bud", "--quiet", "--pull-never", "--layers", *build)
    parser = argparse.ArgumentParser()
    for option in ("--stop-timeout", "--publish", "--volume"):
        parser.add_argument(option, required=True)
    parser.add_argument("image")
    typed = parser.parse_args(run)
    config = builder.config(typed.image)
    assert config["User"] == "kafka"
    assert f"{typed.publish.split(':')[1]}/tcp" in config["ExposedPorts"]
    volume = typed.volume.split(":")[1]
    assert list(config["Volumes"]) == [volume]
    container = builder.run("from", "--pull-never", f"localhost/{typed.image}")
    data = tmp_path / "volume"
    data.mkdir()
    os.chown(data, 1000, 1000)
    command = ["buildah", *builder.options, "run", "--isolation", "chroot"]
    command += ["--volume", f"{data}:{volume}", container, "--"]
    command += [*config["Entrypoint"], *config["Cmd"]]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.image.in_a_namespace", *command],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    assert (data / "lake").is_dir() and (data / "log").is_dir()


def test_no_compiler_and_no_installer_is_in_the_brokers_image(builder: Builder) -> None:
    builder.build("broker")
    container = builder.run("from", "--pull-never", "localhost/broker")
    # What one types with `docker exec`.
    assert builder.run("run", container, "--", "kafka-ds", "--version").startswith("kafka-ds ")
    said = "from broker.compiled.finder import use_build; print(use_build().says)"
    line = builder.run("run", container, "--", "python", "-c", said)
    assert line == f"{len(MODULES)} modules are compiled"
    find = "import shutil; print([name for name in ('gcc', 'cc', 'java') if shutil.which(name)])"
    assert builder.run("run", container, "--", "python", "-c", find) == "[]"
    absent = (
        "import importlib.util as u; print([n for n in ('pip', 'pyspark', 'pyarrow._s3fs', 'pyarrow._flight') "
        "if u.find_spec(n)])"
    )
    assert builder.run("run", container, "--", "python", "-c", absent) == "[]"


def test_sparks_image_has_its_jars(builder: Builder) -> None:
    builder.build("spark")
    container = builder.run("from", "--pull-never", "localhost/spark")
    # Without a network: nothing is fetched when a session starts.
    made = "from spark_conf.session import session; print(session('t').range(3).count())"
    command = [
        "buildah",
        *builder.options,
        "run",
        "--isolation",
        "chroot",
        container,
        "--",
        "python",
        "-c",
        made,
    ]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip().endswith("3"), f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_the_compose_file_runs_from_the_images(builder: Builder, tmp_path: Path) -> None:
    for target in ("broker", "spark"):
        builder.build(target)
    command = [sys.executable, "-m", "tests.image.compose_in_namespaces", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--", *command, "buildah", *builder.options],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=ROOT,
    )
    logs = "".join(f"{log.name}: {log.read_text()[-2000:]}\n" for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}{logs}"
