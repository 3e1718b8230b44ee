"""A real S3 server as a process: S3Proxy over a folder. Objects survive its death, as the folder does."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from spark_conf.jars import fetch
from spark_conf.java import java_command
from tests.store_process import StoreProcess

IDENTITY = "kafka-ds"
CREDENTIAL = "kafka-ds-secret"
BUCKET = "lake"
# Without this the server logs everything that it does: 300 MB in one test.
LOGGING = """<configuration>
  <appender name="all" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="all"/></root>
</configuration>
"""


def address_for(folder: Path) -> str:
    """A prefix of the bucket, which all tests share, for the test with this temporary folder."""
    return f"s3://{BUCKET}/{folder.name}"


def quiet(folder: Path) -> str:
    """The Java option that makes S3Proxy log problems only; its file is written into `folder`."""
    file = folder / "logback.xml"
    file.write_text(LOGGING)
    return f"-Dlogback.configurationFile={file}"


class S3Server(StoreProcess):
    """One S3Proxy with its objects below `folder`."""

    endpoint_variable = "AWS_ENDPOINT_URL"

    def __init__(self, folder: Path, port: int, *, authorization: str = "aws-v2-or-v4") -> None:
        super().__init__(folder, port)
        self.authorization = authorization

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which AWS clients find the server and credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": IDENTITY,
            "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def address_for(self, folder: Path) -> str:
        """A prefix of the bucket for the test with this temporary folder."""
        return address_for(folder)

    def start(self) -> Self:
        """Start it, and wait until it accepts connections; the bucket is a folder of that name."""
        objects = self.folder / "objects"
        (objects / BUCKET).mkdir(parents=True, exist_ok=True)
        properties = self.folder / "s3proxy.properties"
        properties.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            f"s3proxy.authorization={self.authorization}\n"
            f"s3proxy.identity={IDENTITY}\n"
            f"s3proxy.credential={CREDENTIAL}\n"
            "jclouds.provider=filesystem-nio2\n"
            "jclouds.identity=local\n"
            "jclouds.credential=local\n"
            f"jclouds.filesystem.basedir={objects}\n"
        )
        self.launch(
            [
                java_command(),
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                quiet(self.folder),
                "-cp",
                f"{fetch('s3proxy')}/*",
                "org.gaul.s3proxy.Main",
                "--properties",
                str(properties),
            ]
        )
        return self
