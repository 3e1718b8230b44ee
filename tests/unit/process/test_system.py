"""The real disk, clock, ids and threads behind the seams."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafka_ds.process.system import (
    InlineBackground,
    SystemClock,
    SystemDisk,
    SystemNetwork,
    ThreadBackground,
    new_uuid,
)
from kafka_ds.protocol.types import uuid_text
from tests.loops import in_loop


def test_files_are_read_and_written_at_positions(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    file = disk.open(path, create=True)
    assert file.write(memoryview(b"abcdef"), 4) == 6
    assert file.size() == disk.size(path) == 10
    assert file.read(100, 2) == b"\0\0abcdef"
    assert file.read_now(3, 4) == b"abc"
    assert file.read_now(3, 9) is None, "less than was asked for is not enough"
    file.truncate(5)
    file.sync()
    file.close()
    file.close()
    assert disk.read_file(path) == b"\0\0\0\0a"
    assert abs(disk.modified_ms(path) - SystemClock().now_ms()) < 60_000


def test_names(tmp_path: Path) -> None:
    disk = SystemDisk()
    folder = str(tmp_path / "a" / "b")
    disk.make_directory(folder)
    disk.make_directory(folder)
    disk.open(f"{folder}/x", create=True).close()
    disk.open(f"{folder}/y", create=True).close()
    disk.unlink(f"{folder}/x")
    disk.open(f"{folder}/z", create=True).close()
    disk.rename(f"{folder}/y", f"{folder}/z")
    disk.sync_directory(folder)
    assert disk.list_names(folder) == ["z"]
    assert disk.exists(f"{folder}/z")
    disk.unlink(f"{folder}/z")
    disk.remove_directory(folder)
    assert not disk.exists(folder)


def test_a_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    release = SystemDisk().lock(path)
    code = f"from kafka_ds.process.system import SystemDisk; SystemDisk().lock({path!r})"
    words = [sys.executable, "-c", code]
    assert b"BlockingIOError" in subprocess.run(words, capture_output=True, check=False).stderr
    release()
    assert subprocess.run(words, check=False).returncode == 0


def test_an_id_is_never_one_that_kafka_refuses() -> None:
    ids = {new_uuid() for _ in range(300)}
    assert len(ids) == 300
    assert not any(uuid_text(each).startswith("-") for each in ids)


def test_clocks() -> None:
    clock = SystemClock()
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first
    assert clock.now_ms() > 1_700_000_000_000


def fail() -> None:
    raise OSError("no")


def test_work_in_threads_reports_in_the_loop() -> None:
    reports: list[tuple[str, BaseException | None, int]] = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            background = ThreadBackground(asyncio.get_running_loop(), threads)
            done = asyncio.Event()

            def report(name: str, error: BaseException | None) -> None:
                reports.append((name, error, os.getpid()))
                if name == "bad":
                    done.set()

            background.submit(lambda: None, lambda error: report("good", error))
            background.submit(fail, lambda error: report("bad", error))
            await asyncio.wait_for(done.wait(), 10)

    asyncio.run(main())
    assert [name for name, _, _ in reports] == ["good", "bad"]
    assert reports[0][1] is None
    assert isinstance(reports[1][1], OSError)


def test_work_in_line_reports_what_the_disk_says() -> None:
    reports: list[BaseException | None] = []
    background = InlineBackground()
    background.submit(lambda: None, reports.append)
    background.submit(fail, reports.append)
    assert reports[0] is None
    assert isinstance(reports[1], OSError)


@in_loop
async def test_a_listener_has_its_address_before_it_serves() -> None:
    network = SystemNetwork()
    listener = network.bind("127.0.0.1", 0)
    host, port = listener.address
    with pytest.raises(ConnectionError):
        await network.connect(asyncio.Protocol, host, port)
    accepted = asyncio.Event()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set()
            transport.close()

    await listener.serve(Accepting)
    transport, _ = await network.connect(asyncio.Protocol, host, port)
    await asyncio.wait_for(accepted.wait(), 10)
    transport.close()
    await listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@in_loop
async def test_a_port_is_taken_before_it_is_served(host: str) -> None:
    """Two brokers that were given one port, and start together or while the first one recovers its log, both had it."""

    network = SystemNetwork()
    listener = network.bind(host, 0)
    with pytest.raises(OSError, match="Address already in use"):
        network.bind("127.0.0.1", listener.address[1])
    await listener.serve(asyncio.Protocol)
    await listener.close()


@pytest.mark.parametrize("accepts_itself", [True, False])
@in_loop
async def test_a_port_is_had_while_connections_of_the_process_before_linger(
    accepts_itself: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        address = before.getsockname()
        with socket.create_connection(address) as client:
            # Who closes first keeps the address for a minute (TIME_WAIT).
            before.accept()[0].close()
            assert client.recv(1) == b""

    listener = SystemNetwork().bind(*address)
    if accepts_itself:
        await listener.accept(lambda connected: None)
    else:
        await listener.serve(asyncio.Protocol)
    await listener.close()


def test_a_file_system_that_cannot_read_without_waiting_concerns_its_own_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk()
    odd, usual = (disk.open(str(tmp_path / name), create=True) for name in ("odd", "usual"))
    for file in (odd, usual):
        file.write(memoryview(b"abcdef"), 0)
    asked: list[int] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        asked.append(fd)
        if len(asked) == 1:
            raise OSError(errno.EOPNOTSUPP, "no such flag here")
        return real(fd, buffers, position, flags)

    real = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    assert odd.read_now(3, 0) == b"abc"
    assert odd.read_now(3, 4) is None
    assert usual.read_now(3, 0) == b"abc"
    assert len(asked) == 2, "the odd one is not asked again, the usual one is"
