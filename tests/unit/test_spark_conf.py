"""A session's settings for S3, that its jars are of one Hadoop version, and which Java it takes."""

from pathlib import Path

import pyspark
import pytest

from spark_conf import catalog, jars, s3a
from spark_conf.java import JavaUnusable, java_home


@pytest.mark.parametrize(
    ("address", "expected"),
    [(None, False), ("data/lake", False), (Path("/lake"), False), ("file:///lake", False)]
    + [("s3://bucket/lake", True), ("s3a://bucket/lake", True)],
)
def test_a_lake_on_s3_is_known_by_its_address(address, expected):
    assert s3a.is_on_s3(address) is expected


def test_a_store_of_ones_own_is_asked_by_path_and_as_it_is():
    found = s3a.settings({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-west-1"})
    of_s3a = {n.removeprefix("spark.hadoop.fs.s3a."): v for n, v in found.items() if "s3a." in n}
    assert of_s3a.pop("impl") == found["spark.hadoop.fs.s3.impl"]
    assert of_s3a == {
        "endpoint": "http://127.0.0.1:9000",
        "endpoint.region": "eu-west-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }


def test_amazons_own_is_found_by_region():
    found = s3a.settings({"AWS_DEFAULT_REGION": "eu-west-1"})
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"
    assert "spark.hadoop.fs.s3a.endpoint" not in found
    assert s3a.settings({})["spark.hadoop.fs.s3a.endpoint.region"] == s3a.REGION


def test_no_secret_becomes_a_setting():
    secrets = {
        "AWS_ACCESS_KEY_ID": "who",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
    }
    assert s3a.settings(secrets) == s3a.settings({})


def test_the_jars_are_those_of_pysparks_own_hadoop():
    assert list(
        (Path(pyspark.__file__).parent / "jars").glob(
            f"hadoop-client-api-{jars.HADOOP_VERSION}.jar"
        )
    )


def test_brokers_that_are_away_are_told_in_one_line():
    quickly = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "200"}
    problem = catalog.TopicLister("127.0.0.1:1", quickly).apply("")
    assert problem.startswith("option 'kafka.bootstrap.servers' (127.0.0.1:1): ")
    assert "\n" not in problem


def a_java(folder: Path, *, release: str = "", says: str = "exit 1") -> dict[str, str]:
    """An environment with a Java that has this file of itself, and says this of its version."""
    (folder / "bin").mkdir()
    launcher = folder / "bin" / "java"
    launcher.write_text(f"#!/bin/sh\n{says}\n")
    launcher.chmod(0o755)
    if release:
        (folder / "release").write_text(release)
    return {"JAVA_HOME": str(folder)}


def test_a_java_that_spark_can_run_on_is_taken(tmp_path):
    assert java_home(a_java(tmp_path, release='JAVA_VERSION="21.0.2"\n')) == tmp_path


def test_a_java_without_a_file_of_itself_is_asked(tmp_path):
    said = a_java(tmp_path, says="echo 'openjdk version \"25\" 2025-09-16' >&2")
    assert java_home(said) == tmp_path


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            {"release": 'JAVA_VERSION="11.0.24"\n'},
            r"bin/java is Java 11\.0\.24\. Spark needs Java 17",
        ),
        ({"release": 'JAVA_VERSION="1.8.0_402"\n'}, r"is Java 1\.8\.0_402"),
        ({}, r"bin/java does not run, or does not print its version"),
    ],
)
def test_a_java_that_spark_cannot_run_on_is_named(tmp_path, how, told):
    with pytest.raises(JavaUnusable, match=told):
        java_home(a_java(tmp_path, **how))


def test_where_there_is_no_java_is_told(tmp_path):
    with pytest.raises(
        JavaUnusable, match=rf"JAVA_HOME={tmp_path}: {tmp_path}/bin/java is missing"
    ):
        java_home({"JAVA_HOME": str(tmp_path)})
    with pytest.raises(JavaUnusable, match="no Java found: JAVA_HOME is not set"):
        java_home({"PATH": str(tmp_path)})


def test_what_is_downloaded_is_said_and_lies_in_the_users_cache(monkeypatch, tmp_path, capsys):
    """Of an installed package, where Ivy cannot run: nothing is fetched, and it was said what and where to."""
    monkeypatch.delenv("KAFKA_DS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        jars, "__file__", str(tmp_path / "site-packages" / "spark_conf" / "jars.py")
    )
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    old = tmp_path / "kafka-ds" / "jars" / jars.of_pyspark("delta") / "delta-storage-4.3.0.jar"
    old.parent.mkdir(parents=True)
    old.touch()  # Of the version that was pinned before.
    with pytest.raises(jars.JarsUnavailable, match="missing"):
        jars.fetch("delta")
    told = capsys.readouterr().err
    assert f"downloading delta-spark_{pyspark.__version__[:3]}_2.13 {jars.DELTA_VERSION}" in told
    assert told.rstrip().endswith(f"into {tmp_path}/kafka-ds/jars/{jars.of_pyspark('delta')}")


def test_jars_are_printed_as_spark_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/one.jar", "a/two.jar", "b/three.jar", "b/.complete"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(jars, "fetch", lambda name: tmp_path / name)
    monkeypatch.setattr("sys.argv", ["jars", "--list", "a", "b"])
    assert jars.main() == 0
    names = [f"{tmp_path}/{each}" for each in ("a/one.jar", "a/two.jar", "b/three.jar")]
    assert capsys.readouterr().out == ",".join(names) + "\n"
