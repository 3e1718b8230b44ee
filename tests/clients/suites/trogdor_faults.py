"""Trogdor's workloads over three brokers, of which one after the other is stopped, or killed and started again.

`RoundTripWorkload+stop`: Trogdor's own ProcessStopFault, which stops a process with SIGSTOP and lets it go on with
SIGCONT. Its agent finds Java's processes by the command `jcmd`; one of ours names the brokers', in whatever language.
`RoundTripWorkload+kill`: SIGKILL, by this harness.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.clients.suites.clusters import Cluster
from tests.clients.suites.outcomes import Outcome, each_of
from tests.clients.suites.trogdor import MESSAGES, NODE, WORKLOADS, ask, daemons, run_workload

# A workload takes some 40 s at this rate: each fault begins meanwhile, when the one before has ended.
RATE = MESSAGES // 40
FIRST_S, PERIOD_S = 5, 11
# Longer than a session of the brokers: others lead meanwhile.
STOPPED_S, DEAD_S = 6, 2
REPLICATED = {"numPartitions": 4, "replicationFactor": 3}


def run_trogdor_faults(
    _source: None, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """Each workload with its fault, one after the other."""
    processes = work / "brokers"
    with daemons(work, _jcmd(work, processes)) as coordinator:
        tries = iter(range(1_000))

        def run(test: str) -> Outcome:
            workload, _, fault = test.partition("+")
            name = f"{test}-{next(tries)}"
            if fault == "stop":
                _list(processes, cluster)
                _plan_stops(coordinator, name, cluster)
            killing = threading.Thread(target=_kill_each, args=(cluster,))
            if fault == "kill":
                killing.start()
            spec = _spec(workload, name)
            outcome = run_workload(coordinator, name, workload, spec, cluster.bootstrap)
            if fault == "kill":
                killing.join()
            else:
                outcome = _if_stopped(coordinator, name, cluster, outcome)
            return replace(outcome, test=test)

        yield from each_of(run, tests, at_once=1)


def _spec(workload: str, name: str) -> dict[str, Any]:
    """The workload with three replicas of each partition, in topics of its own, at its rate."""
    topics = {f"{name.translate(str.maketrans('@+', '--'))}-[1-3]": REPLICATED}
    return {**WORKLOADS[workload], "targetMessagesPerSec": RATE, "activeTopics": topics}


def _jcmd(work: Path, processes: Path) -> Path:
    """A command `jcmd` that prints the file; its folder."""
    commands = work / "jcmd"
    commands.mkdir()
    (commands / "jcmd").write_text(f'#!/bin/sh\nexec cat "{processes}"\n')
    (commands / "jcmd").chmod(0o755)
    return commands


def _list(processes: Path, cluster: Cluster) -> None:
    """The brokers that run, as `jcmd` has it: `PID NAME`."""
    named = [f"{broker.pid} broker-{number}\n" for number, broker in cluster.brokers.items()]
    processes.write_text("".join(named))


def _plan_stops(coordinator: str, name: str, cluster: Cluster) -> None:
    """One broker after the other is to be stopped."""
    now = int(time.time() * 1000)
    for place, number in enumerate(cluster.brokers):
        spec = {
            "class": "org.apache.kafka.trogdor.fault.ProcessStopFaultSpec",
            "startMs": now + (FIRST_S + place * PERIOD_S) * 1000,
            "durationMs": STOPPED_S * 1000,
            "nodeNames": [NODE],
            "javaProcessName": f"broker-{number}",
        }
        ask(f"{coordinator}/task/create", {"id": f"{name}-stop-{number}", "spec": spec})


def _if_stopped(coordinator: str, name: str, cluster: Cluster, outcome: Outcome) -> Outcome:
    """The outcome, once all stops are over; a failure unless each of them was done meanwhile."""
    for number in cluster.brokers:
        early = ask(f"{coordinator}/tasks/{name}-stop-{number}")["state"] != "DONE"
        while (stop := ask(f"{coordinator}/tasks/{name}-stop-{number}"))["state"] != "DONE":
            time.sleep(0.2)
        if early or stop.get("error"):
            outcome = replace(outcome, state="failed", printed=f"{outcome.printed}\n{stop}")
    return outcome


def _kill_each(cluster: Cluster) -> None:
    """Kill one broker after the other, and start it again."""
    began = time.monotonic()
    for place, broker in enumerate(cluster.brokers.values()):
        time.sleep(max(0.0, began + FIRST_S + place * PERIOD_S - time.monotonic()))
        broker.kill()
        time.sleep(DEAD_S)
        broker.start()
