"""Shell: the settings of Hadoop's S3A, by which Spark's own readers (Delta, Parquet) find tables on S3.

They are derived from AWS's environment variables (`AWS_ENDPOINT_URL`, `AWS_REGION`); S3A reads secrets there itself.
`s3://` is the same as `s3a://`. With an endpoint of its own, a store gets path-style requests.

Usage: ``python -m spark_conf.s3a`` prints the settings as a properties file, for spark-submit and spark-sql; the jars
are ``$(python -m spark_conf.jars s3a)/*.jar``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

from kafka_ds.delta.store.store import S3_SCHEMES

JARS = "s3a"
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
# The default of the lake's own client; without it S3A would ask the EC2 instance.
REGION = "us-east-1"
_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def is_on_s3(address: str | os.PathLike[str] | None) -> bool:
    """Whether a lake is on S3 and needs these settings."""
    return address is not None and urlsplit(os.fspath(address)).scheme in S3_SCHEMES


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for S3A, from environment variables."""
    region = next(filter(None, (environment.get(name) for name in REGION_VARIABLES)), REGION)
    found = {
        "spark.hadoop.fs.s3.impl": _FILE_SYSTEM,
        "spark.hadoop.fs.s3a.impl": _FILE_SYSTEM,
        "spark.hadoop.fs.s3a.endpoint.region": region,
        # Reads several column chunks per request; spark-defaults.conf turns it off for local files.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "true",
    }
    endpoint = environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        found["spark.hadoop.fs.s3a.endpoint"] = endpoint
        found["spark.hadoop.fs.s3a.path.style.access"] = "true"
        is_plain = urlsplit(endpoint).scheme == "http"
        found["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not is_plain).lower()
    return found


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m spark_conf.s3a",
        description="Prints S3A settings for Spark's own readers, derived from AWS's environment variables.",
    ).parse_args()
    for name, value in settings(os.environ).items():
        print(f"{name:<50} {value}")  # noqa: T201 (this is the command's output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
