"""A network for brokers: one namespace each behind a bridge; each pair can be cut in each direction.

It is used inside a user, network and mount namespace that this file creates (`inside_namespaces`). So nothing outside
changes, and everything disappears with the last process inside. Addresses are those reserved for documentation.

A cut is silent, like a failed switch: the sender notices it only by waiting. Hardware addresses are fixed, without ARP,
and a cut makes the sender's entry for the receiver point to an unused address.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

BRIDGE = "brokers"
# The number of the clients' end of the bridge; a broker has its node id.
CLIENTS = 100
NOWHERE = "02:00:00:00:ff:ff"


def inside_namespaces(command: Sequence[str]) -> list[str]:
    """The command that runs `command` as root of new namespaces, which end with it."""
    return ["unshare", "--user", "--map-root-user", "--net", "--mount", "--", *command]


def are_permitted() -> bool:
    """Whether this machine permits such namespaces and has the tools for them."""
    try:
        tried = inside_namespaces(["ip", "link", "add", BRIDGE, "type", "bridge"])
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def address(node: int) -> str:
    """The address of a broker, or of the clients."""
    return f"192.0.2.{node}"


def _hardware(node: int) -> str:
    return f"02:00:00:00:00:{node:02x}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


class ClusterNetwork:
    """The bridge, a namespace for each broker, and the cuts."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = tuple(nodes)
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "address", _hardware(CLIENTS), "up")
        _run("ip", "address", "add", f"{address(CLIENTS)}/24", "dev", BRIDGE)
        for node in self.nodes:
            self._add(node)
        for node in self.nodes:
            self.heal(CLIENTS, node)
        self.heal_all()

    def _add(self, node: int) -> None:
        # This process keeps the namespace alive while its broker restarts.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo made; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        self._holders[node] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"made\n"
        port = f"broker{node}"
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", f"inside{node}")
        _run("ip", "link", "set", f"inside{node}", "netns", str(holder.pid))
        _run("ip", "link", "set", port, "master", BRIDGE, "up")
        self._inside(node, "link", "set", "lo", "up")
        self._inside(node, "link", "set", f"inside{node}", "name", "eth0")
        self._inside(node, "link", "set", "eth0", "address", _hardware(node), "up")
        self._inside(node, "address", "add", f"{address(node)}/24", "dev", "eth0")

    def prefix(self, node: int) -> list[str]:
        """The words that run a command in this broker's namespace; the process keeps its id."""
        return ["nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net", "--"]

    def _inside(self, node: int, *words: str) -> None:
        _run(*self.prefix(node), "ip", *words)

    def _send(self, sender: int, receiver: int, hardware: str) -> None:
        device = BRIDGE if sender == CLIENTS else "eth0"
        entry = (address(receiver), "lladdr", hardware, "dev", device, "nud", "permanent")
        words = ("ip", "neighbour", "replace", *entry)
        _run(*(words if sender == CLIENTS else (*self.prefix(sender), *words)))

    def cut(self, sender: int, receiver: int) -> None:
        """Let nothing from the sender reach the receiver."""
        self._send(sender, receiver, NOWHERE)

    def heal(self, sender: int, receiver: int) -> None:
        """Let the sender reach the receiver again."""
        self._send(sender, receiver, _hardware(receiver))

    def heal_all(self) -> None:
        """Undo all cuts."""
        everybody = (*self.nodes, CLIENTS)
        for sender in everybody:
            for receiver in everybody:
                if sender != receiver:
                    self.heal(sender, receiver)

    def close(self) -> None:
        """End the processes that keep the namespaces alive."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()


class SmallDisk:
    """A file system in memory, small enough to be filled."""

    SIZE = "96m"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", str(folder))

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self) -> None:
        """Leave no room for another byte."""
        block = bytes(1 << 16)
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(block):
                    pass
            except OSError:
                return

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)
