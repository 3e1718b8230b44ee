"""Images of the Dockerfile, built and run without a container engine: Debian's buildah, as root, in a store of its own.

The base image that the Dockerfile names comes from a registry of images; here mmdebstrap makes it of Debian's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
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
