"""Azure's own emulator of Blob Storage as a process, from npm. Its death may take its last seconds of blobs along."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

from spark_conf.jars import cache_folder
from tests.store_process import StoreProcess

# The last one for Node.js 20.
VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
# Known to everybody.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "lake"


def fetched() -> Path:
    """The program of the blob service, by npm into the checkout's cache when it is first asked for."""
    folder = cache_folder().parent / f"azurite-{VERSION}"
    if not folder.exists():
        npm = shutil.which("npm")
        assert npm is not None, "Azurite needs Node.js and npm"
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(dir=folder.parent)
        words = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
        said = subprocess.run(
            [npm, *words, "--prefix", made, f"azurite@{VERSION}"], capture_output=True, text=True
        )
        assert said.returncode == 0, said.stderr
        try:
            os.rename(made, folder)
        except OSError:  # Another process was as quick.
            shutil.rmtree(made)
    return folder / "node_modules/azurite/dist/src/blob/main.js"


class AzureServer(StoreProcess):
    """One Azurite with its blobs below `folder`."""

    endpoint_variable = "AZURITE_BLOB_STORAGE_URL"

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Azure's clients find the server and its account."""
        return {
            "AZURITE_BLOB_STORAGE_URL": self.endpoint,
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def address_for(self, folder: Path) -> str:
        """A prefix of the container for the test with this temporary folder."""
        return f"az://{CONTAINER}/{folder.name}"

    def start(self) -> Self:
        """Start it, wait until it accepts connections, and make the container."""
        words = ["node", str(fetched()), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        words += ["--location", str(self.folder), "--silent", "--disableTelemetry"]
        words += ["--skipApiVersionCheck"]
        self.launch(words)
        self._make_container()
        return self

    def _make_container(self) -> None:
        version, now = "2020-10-02", datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = (
            "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        )
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        signature = base64.b64encode(digest).decode()
        asked = Request(
            f"{self.endpoint}/{ACCOUNT}/{CONTAINER}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": now,
                "x-ms-version": version,
                "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            },
        )
        with urlopen(asked) as answer:
            assert answer.status == 201
