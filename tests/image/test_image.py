"""The images of the Dockerfile are built and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.builder import ROOT, Builder, missing_tools

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


def test_the_brokers_image_runs_without_an_argument(builder: Builder, tmp_path: Path) -> None:
    builder.build("broker")
    config = builder.config("broker")
    assert config["User"] == "kafka"
    assert "9092/tcp" in config["ExposedPorts"]
    (volume,) = config["Volumes"]
    container = builder.run("from", "--pull-never", "localhost/broker")
    data = tmp_path / "volume"
    data.mkdir()
    os.chown(data, 1000, 1000)
    command = [
        "buildah",
        *builder.options,
        "run",
        "--isolation",
        "chroot",
        "--volume",
        f"{data}:{volume}",
    ]
    command += [container, "--", *config["Entrypoint"], *config["Cmd"]]
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
    find = "import shutil; print([name for name in ('gcc', 'cc', 'java') if shutil.which(name)])"
    assert builder.run("run", container, "--", "python", "-c", find) == "[]"
    absent = "import importlib.util as u; print([n for n in ('pip', 'pyspark') if u.find_spec(n)])"
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
