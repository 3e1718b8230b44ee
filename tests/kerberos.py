"""A realm for tests: a KDC of Debian's packages, which are unpacked below .cache, not installed."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.apache_kafka import free_ports
from tests.processes import wait_until

CACHE = Path(__file__).parents[1] / ".cache" / "kerberos"
PACKAGES = ("krb5-kdc", "krb5-admin-server", "krb5-user", "python3-gssapi", "libfaketime")
REALM = "KAFKA.TEST"
# The name of 127.0.0.1, which clients make of the address.
HOST = socket.gethostbyaddr("127.0.0.1")[0]
# How far clocks may differ, and an expired ticket is still taken: as short as a test can wait.
CLOCK_SKEW_S = 3


@cache
def unpacked() -> Path | None:
    """The folder with the packages' files; None where they are not to be had."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (CACHE / "root").exists() or _download():
            return CACHE / "root"
    return None


def _download() -> bool:
    archives, made = CACHE / "archives", CACHE / "root.new"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    lists = CACHE / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    own = ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", "-qq"]
    get = [
        *own,
        "-y",
        "--no-install-recommends",
        "--reinstall",
        "--download-only",
        "install",
        *PACKAGES,
    ]
    # A new machine has no lists, or old ones, that name what the archive no longer has.
    fresh = ["-o", f"Dir::State::lists={lists}"]
    if not _apt(get) and not (_apt([*own, *fresh, "update"]) and _apt([*fresh, *get])):
        return False
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(made)], check=True)
    made.rename(CACHE / "root")
    return True


def _apt(words: list[str]) -> bool:
    done = subprocess.run(["apt-get", *words], capture_output=True, text=True, check=False)
    return done.returncode == 0


@cache
def python_path() -> str | None:
    """The folder that has `gssapi` for this Python, empty where it is installed; None without one."""
    if importlib.util.find_spec("gssapi") is not None:
        return ""
    root = unpacked()
    folder = root / "usr/lib/python3/dist-packages" if root is not None else None
    fits = ["-c", "import gssapi"]
    if (
        folder is not None
        and not subprocess.run(
            [sys.executable, *fits],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            check=False,
        ).returncode
    ):
        return str(folder)
    return None


class Realm:
    """A realm with its KDC, whose database and keytabs are below `folder`."""

    def __init__(self, folder: Path) -> None:
        root = unpacked()
        assert root is not None
        self._root = root
        self.folder = folder
        (self.port,) = free_ports(1)
        self.config = folder / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
            f"clockskew = {CLOCK_SKEW_S}\nkdc_timesync = 0\n"
            f"[realms]\n{REALM} = {{\n kdc = 127.0.0.1:{self.port}\n}}\n"
            f"[domain_realm]\n{HOST} = {REALM}\n"
        )
        # Of a client that does not see itself that its clock is wrong.
        self._patient = folder / "patient.conf"
        self._patient.write_text(
            self.config.read_text().replace(f"skew = {CLOCK_SKEW_S}", "skew = 1000")
        )
        at = f"127.0.0.1:{self.port}"
        (folder / "kdc.conf").write_text(
            f"[kdcdefaults]\nkdc_listen = {at}\nkdc_tcp_listen = {at}\n"
            f"[realms]\n{REALM} = {{\n database_name = {folder}/db\n key_stash_file = {folder}/stash\n}}\n"
            f"[dbmodules]\ndb_module_dir = {next(root.rglob('db2.so')).parent}\n"
            f"[logging]\nkdc = FILE:{folder}/kdc.log\n"
        )
        self._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a process that uses this realm, by the system's libraries."""
        path = [each for each in (os.environ.get("PYTHONPATH"), python_path()) if each]
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5CCNAME": str(self.folder / "tickets"),
            "KRB5RCACHEDIR": str(self.folder),
            "PYTHONPATH": os.pathsep.join(path),
        }

    def at_another_time(self, seconds: int) -> Mapping[str, str]:
        """The same of a process whose clock is so many seconds ahead."""
        (library,) = self._root.rglob("libfaketime.so.1")
        return {
            **self.environment,
            "KRB5_CONFIG": str(self._patient),
            "LD_PRELOAD": str(library),
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def add(self, principal: str) -> Path:
        """A new principal, and its keytab."""
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        return self.keytab(principal)

    def keytab(self, principal: str) -> Path:
        """A keytab of new keys; tickets by older ones are not accepted with it."""
        file = self.folder / f"{principal.replace('/', '-')}.keytab"
        file.unlink(missing_ok=True)
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {file} {principal}")
        return file

    def kinit(self, principal: str, keytab: Path, *words: str) -> None:
        """Tickets of a principal for the user of `environment`."""
        self._run("kinit", "-k", "-t", str(keytab), *words, principal)

    def get_ticket(self, service: str) -> None:
        """A ticket for a service, for the same user."""
        self._run("kvno", service)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Its KDC runs."""
        process = subprocess.Popen(
            [self._program("krb5kdc"), "-n", "-r", REALM, "-P", str(self.folder / "kdc.pid")],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        log = self.folder / "kdc.log"
        try:
            wait_until("the KDC", lambda: log.exists() and "commencing" in log.read_text())
            yield
        finally:
            process.terminate()
            process.wait()

    @property
    def _environment(self) -> dict[str, str]:
        """Of the packages' programs: by their own libraries."""
        libraries = {str(each.parent) for each in self._root.rglob("*.so.*")}
        return {
            **os.environ,
            **self.environment,
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries, key=len)),
        }

    def _program(self, name: str) -> str:
        return str(
            next(each for each in self._root.rglob(name) if each.parent.name in ("bin", "sbin"))
        )

    def _run(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [self._program(name), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
