"""What a seed runs: how many brokers, which clients, which faults. Each family of seeds has its own theme."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.sim.faults import ALL, Plan
from tests.sim.scenario import Scenario, Shape

if TYPE_CHECKING:
    from tests.sim.diskless_scenario import DisklessScenario

# Short timeouts, so that much happens in little virtual time.
BRISK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "700",
    "controller.lease.interval.ms": "700",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.backoff.ms": "300",
    "request.timeout.ms": "6000",
}
BRISK_SCALE = 0.35
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}

# With one replica no other has what its disk loses.
ALONE = (
    "kill",
    "stop",
    "pause",
    "slow_disk",
    "lake_away",
    "lake_fails",
    "lake_loses_answers",
    "clock_jump",
)
MACHINES = ("kill", "power", "power", "pause", "isolate", "cut", "slow_way", "crash_and_back")
GROUPS = ("kill", "stop", "pause", "isolate", "cut", "slow_for_clients", "power", "crash_and_back")
MOVES = (
    "kill",
    "power",
    "stop",
    "log_dir_fails",
    "log_dir_fails",
    "disk_full",
    "slow_disk",
    "isolate",
)
COORDINATORS = ("kill", "stop", "pause", "isolate", "cut", "slow_way")
LAKE = ("lake_away", "lake_fails", "lake_loses_answers", "kill", "pause", "cut_one_way")


def one_broker(seed: int) -> Scenario:
    """One broker: crashes, and a lake that is away at times."""
    shape = Shape(brokers=1, replication_factor=1, min_insync_replicas=1, seconds=15)
    return Scenario(seed, shape, Plan(kinds=ALONE, every_seconds=1.5))


def cluster(seed: int) -> Scenario:
    """Clusters of any size with all faults."""
    chance = Random(f"cluster {seed}")
    kinds = tuple(kind for kind in ALL if chance.random() < 0.6) or ALL
    shape = Shape(
        brokers=chance.choice((3, 3, 3, 4, 5)),
        partitions=chance.choice((1, 2, 2, 3)),
        transactional=chance.choice((0, 0, 1, 2)),
        seconds=7,
        log_dirs=chance.choice((1, 1, 2)),
        has_operator=chance.random() < 0.3,
        near_readers=chance.choice((0, 0, 1)),
    )
    plan = Plan(kinds=kinds, every_seconds=chance.uniform(0.3, 1.0), scale=BRISK_SCALE)
    return Scenario(seed, shape, plan, BRISK)


def machines(seed: int) -> Scenario:
    """Three brokers; machines fail, and the links between them."""
    shape = Shape(transactional=0, seconds=12)
    return Scenario(seed, shape, Plan(kinds=MACHINES, every_seconds=0.7, scale=BRISK_SCALE), BRISK)


def lake(seed: int) -> Scenario:
    """Three brokers with an unreliable lake."""
    shape = Shape(transactional=0, seconds=8, has_operator=True)
    return Scenario(seed, shape, Plan(kinds=LAKE, every_seconds=0.55, scale=BRISK_SCALE), BRISK)


def storeless(seed: int) -> Scenario:
    """Controllers that lose the lake, while every broker hears them."""
    shape = Shape(transactional=0, seconds=30, has_operator=True)
    plan = Plan(kinds=("controller_without_lake",), every_seconds=0.3)
    return Scenario(seed, shape, plan, BRISK)


def outages(seed: int) -> Scenario:
    """Nobody reaches the lake until several disks are full."""
    plan = Plan(kinds=("outage",), every_seconds=0.3)
    # Each broker leads a partition: only leaders refuse records.
    return Scenario(seed, Shape(partitions=3, transactional=0, seconds=30), plan, BRISK)


# A follower that is behind catches up batch by batch.
SLOWLY = {**BRISK, "replica.lag.time.max.ms": "600", "replica.fetch.max.bytes": "1"}


def laggards(seed: int) -> Scenario:
    """Followers that come back far behind, while leaders go."""
    plan = Plan(kinds=("laggard",), every_seconds=0.3, scale=0.2)
    return Scenario(seed, Shape(transactional=0, seconds=10), plan, SLOWLY)


def repeats(seed: int) -> Scenario:
    """Proposals of ISRs that arrive again when they are out of date."""
    plan = Plan(kinds=("stale_proposal",), every_seconds=0.3, scale=0.2)
    return Scenario(seed, Shape(transactional=0, seconds=10), plan, SLOWLY)


def leftovers(seed: int) -> Scenario:
    """Leaders that die with records that nobody else has, and come back."""
    plan = Plan(kinds=("leftover",), every_seconds=0.3, scale=0.2)
    return Scenario(seed, Shape(transactional=0, seconds=10), plan, BRISK)


def groups(seed: int) -> Scenario:
    """Members of groups, some of which transform each record that they read once; their coordinators fail."""
    settings = {
        **BRISK,
        **REPLICATED,
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "100",
    }
    shape = Shape(plain=0, idempotent=1, transactional=0, seconds=8, members=2, transformers=2)
    plan = Plan(kinds=GROUPS, every_seconds=0.8, scale=BRISK_SCALE)
    return Scenario(seed, shape, plan, settings)


def moves(seed: int) -> Scenario:
    """Replicas that move between the log directories of a broker; some directories fail."""
    chance = Random(f"moves {seed}")
    settings = {
        **BRISK,
        "replica.alter.log.dirs.io.max.bytes.per.second": chance.choice(("2000", "20000")),
    }
    shape = Shape(transactional=0, seconds=8, log_dirs=2, has_mover=True)
    plan = Plan(kinds=MOVES, every_seconds=0.65, scale=BRISK_SCALE)
    return Scenario(seed, shape, plan, settings)


def coordinators(seed: int) -> Scenario:
    """Transactions whose coordinators fail, with Kafka's own timeouts."""
    shape = Shape(plain=0, idempotent=1, transactional=2, seconds=30)
    return Scenario(seed, shape, Plan(kinds=COORDINATORS), REPLICATED)


def zombies(seed: int) -> Scenario:
    """Leaders and controllers that are paused or cut off for a while and do not know it."""
    kinds = (
        *("isolate", "isolate", "pause", "pause", "kill", "cut", "crash_and_back"),
        "late_metadata",
    )
    plan = Plan(kinds=kinds, every_seconds=0.5, scale=BRISK_SCALE)
    return Scenario(seed, Shape(transactional=0, seconds=15), plan, BRISK)


def transactions(seed: int) -> Scenario:
    """Transactions on one broker that crashes, with read_committed readers."""
    shape = Shape(
        brokers=1, replication_factor=1, min_insync_replicas=1, plain=0, transactional=2, seconds=15
    )
    return Scenario(seed, shape, Plan(kinds=("crash_and_back", "pause"), scale=BRISK_SCALE), BRISK)


TIER = (
    "crash_point",
    "crash_point",
    "crash_point",
    "worker_dies",
    "worker_sleeps",
    "worker_sleeps",
    "kill",
    "power",
    "lost_disk",
    "pause",
    "isolate",
    "late_metadata",
    "lake_away",
    "lake_fails",
    "lake_loses_answers",
)
RECKLESS = (
    "power",
    "power",
    "lost_disk",
    "pause",
    "isolate",
    "isolate",
    "worker_sleeps",
    "worker_sleeps",
    "crash_point",
    "late_metadata",
    "lake_away",
)
# Retention: everything (with it the checkers see most), by time, or by size.
RETENTIONS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"log.retention.ms": "2500"},
    {"log.retention.bytes": "3000"},
    {"log.retention.ms": "4000", "log.retention.bytes": "6000"},
)


def tier(seed: int) -> Scenario:
    """Clusters with tables, whose workers die at each step, sleep too long, and lose answers."""
    # Imported here: Arrow and `deltalake` take half a second, which other families do not need.
    from tests.sim.tier_scenario import TIERED, TierScenario

    chance = Random(f"tier {seed}")
    shape = Shape(plain=1, idempotent=1, transactional=1, seconds=10)
    settings = {**BRISK, **REPLICATED, **TIERED, "lake.max.lag.ms": chance.choice(("-1", "300"))}
    plan = Plan(kinds=TIER, every_seconds=0.5, scale=BRISK_SCALE)
    settings |= chance.choice(RETENTIONS)
    deletes_records = chance.random() < 0.4
    return TierScenario(seed, shape, plan, settings, deletes_records=deletes_records)


def answers(seed: int) -> Scenario:
    """Tables whose commits are made and not answered, one after the other."""
    from tests.sim.tier_scenario import TIERED, TierScenario

    shape = Shape(plain=1, idempotent=1, transactional=0, seconds=5)
    settings = {**BRISK, **TIERED, "lake.max.lag.ms": "300"}
    plan = Plan(kinds=("commit_answer_lost",), every_seconds=0.15)
    return TierScenario(seed, shape, plan, settings)


def reckless(seed: int) -> Scenario:
    """As `tier`, with unclean elections: former leaders sleep through them, and lose records."""
    from tests.sim.tier_scenario import TIERED, RecklessScenario

    chance = Random(f"reckless {seed}")
    shape = Shape(plain=1, idempotent=1, transactional=0, min_insync_replicas=1, seconds=10)
    settings = {
        **BRISK,
        **TIERED,
        **chance.choice(RETENTIONS),
        "unclean.leader.election.enable": "true",
        "lake.max.lag.ms": "300",
    }
    plan = Plan(kinds=RECKLESS, every_seconds=0.4, scale=BRISK_SCALE)
    return RecklessScenario(seed, shape, plan, settings)


SWITCHES = (
    "crash_point",
    "worker_dies",
    "worker_sleeps",
    "kill",
    "power",
    "pause",
    "isolate",
    "crash_and_back",
    "late_metadata",
    "lake_away",
)


def switches(seed: int) -> Scenario:
    """A topic that becomes a table and stops being one, again and again (KIP-950)."""
    from tests.sim.switches import SwitchScenario
    from tests.sim.tier_scenario import TIERED

    shape = Shape(plain=1, idempotent=1, transactional=0, seconds=10)
    plan = Plan(kinds=SWITCHES, every_seconds=0.6, scale=BRISK_SCALE)
    return SwitchScenario(seed, shape, plan, {**BRISK, **TIERED, "lake.max.lag.ms": "300"})


def foreign(seed: int, **named: Any) -> Scenario:
    """As `tier`, with other engines that write to the table, too."""
    from tests.sim.foreign import ForeignScenario
    from tests.sim.tier_scenario import TIERED

    chance = Random(f"foreign {seed}")
    shape = Shape(plain=1, idempotent=1, transactional=1, seconds=10)
    settings = {**BRISK, **REPLICATED, **TIERED, "lake.max.lag.ms": chance.choice(("-1", "300"))}
    settings |= chance.choice(RETENTIONS)
    plan = Plan(kinds=TIER, every_seconds=0.7, scale=BRISK_SCALE)
    deletes_records = chance.random() < 0.3
    return ForeignScenario(seed, shape, plan, settings, deletes_records=deletes_records, **named)


def packing(seed: int) -> Scenario:
    """Tables whose files another engine packs, or deletes, while the broker's OPTIMIZE replaces them."""
    from tests.sim.engines import PackingEngine
    from tests.sim.foreign import ForeignScenario
    from tests.sim.tier_scenario import TIERED

    shape = Shape(plain=1, idempotent=1, transactional=0, seconds=10)
    plan = Plan(kinds=("crash_point", "worker_dies"), every_seconds=2.0)
    settings = {**BRISK, **TIERED, "lake.max.lag.ms": "300"}
    return ForeignScenario(seed, shape, plan, settings, engine=PackingEngine)


DISKLESS = (
    "lost_logs",
    "lost_logs",
    "lost_logs_and_back",
    "zombie",
    "zombie",
    "zombie",
    "lost_disk",
    "power",
    "kill",
    "stop",
    "pause",
    "pause",
    "isolate",
    "isolate",
    "late_metadata",
    "late_metadata",
    "cut",
    "slow_disk",
    "late_puts",
    "late_puts",
    "lake_away",
    "lake_fails",
    "lake_loses_answers",
    "lake_loses_answers",
    "crash_point",
    "worker_dies",
    "worker_sleeps",
)


def _of_diskless(
    kind: type[DisklessScenario],
    seed: int,
    chance: Random,
    shape: Shape,
    every_seconds: float = 0.45,
) -> DisklessScenario:
    """What is drawn for topics that are diskless, or become so; without groups records may be deleted."""
    from tests.sim.tier_scenario import TIERED

    settings = {
        **BRISK,
        **REPLICATED,
        **TIERED,
        "group.min.session.timeout.ms": "1000",
        "lake.max.lag.ms": chance.choice(("-1", "300", "3000")),
        "lake.diskless.linger.ms": chance.choice(("0", "20", "100")),
        "leader.imbalance.check.interval.seconds": chance.choice(("2", "300")),
        "default.replication.factor": str(2 + seed % 2),
    }
    settings |= {} if shape.members else chance.choice(RETENTIONS)
    deletes_records = not shape.members and chance.random() < 0.3
    plan = Plan(kinds=DISKLESS, every_seconds=every_seconds, scale=BRISK_SCALE)
    return kind(seed, shape, plan, settings, deletes_records=deletes_records)


def diskless(seed: int) -> Scenario:
    """Diskless topics, whose leaders lose their disks, are deposed while they write, and write late."""
    from tests.sim.diskless_scenario import DisklessScenario

    chance = Random(f"diskless {seed}")
    brokers = chance.choice((1, 2, 3, 3, 4))
    has_groups = brokers >= 3 and chance.random() < 0.3
    shape = Shape(
        brokers=brokers,
        replication_factor=1,
        plain=1,
        idempotent=2,
        transactional=chance.choice((0, 1)) if brokers >= 3 else 0,
        members=has_groups,
        transformers=has_groups,
        has_operator=chance.random() < 0.5,
        log_dirs=chance.choice((1, 1, 2)),
        seconds=10,
    )
    return _of_diskless(DisklessScenario, seed, chance, shape)


def to_diskless(seed: int) -> Scenario:
    """Topics with replicas that become diskless while everything goes on."""
    from tests.sim.diskless_scenario import ToDisklessScenario

    return _switching(ToDisklessScenario, seed, Random(f"to_diskless {seed}"))


def both_ways(seed: int) -> Scenario:
    """Topics that become diskless, and replicated again."""
    from tests.sim.diskless_scenario import BothWaysScenario

    chance = Random(f"both_ways {seed}")
    # What happens between two faults by chance is to be long enough for a switch, which has faults of its own.
    return _switching(BothWaysScenario, seed, chance, seconds=20, every_seconds=1.2)


def _switching(
    kind: type[DisklessScenario],
    seed: int,
    chance: Random,
    *,
    seconds: float = 10,
    every_seconds: float = 0.45,
) -> Scenario:
    has_groups = chance.random() < 0.2
    shape = Shape(
        brokers=chance.choice((3, 3, 4)),
        partitions=4,
        plain=1,
        idempotent=2,
        transactional=chance.choice((0, 1)),
        members=has_groups,
        transformers=has_groups,
        has_operator=chance.random() < 0.3,
        log_dirs=chance.choice((1, 1, 2)),
        seconds=seconds,
    )
    return _of_diskless(kind, seed, chance, shape, every_seconds)


def sleepers(seed: int) -> Scenario:
    """Leaders of diskless partitions that sleep through an election, with puts on their way."""
    from tests.sim.diskless_scenario import DisklessScenario
    from tests.sim.tier_scenario import TIERED

    chance = Random(f"sleepers {seed}")
    shape = Shape(replication_factor=1, plain=2, idempotent=4, transactional=0, seconds=20)
    settings = {
        **BRISK,
        **TIERED,
        "lake.max.lag.ms": chance.choice(("-1", "300")),
        "lake.diskless.linger.ms": chance.choice(("0", "20")),
    }
    plan = Plan(kinds=("zombie",), every_seconds=0.3)
    return DisklessScenario(seed, shape, plan, settings)


FOLLOWERS = (
    "replica_killed",
    "replica_worker_dies",
    "replica_worker_dies",
    "replica_paused",
    "copy_away",
    "copy_fails",
    "crash_point",
    "crash_point",
    "worker_dies",
    "worker_sleeps",
    "kill",
    "power",
    "pause",
    "lake_away",
)


def followers(seed: int) -> Scenario:
    """Read replicas over a copy of the lake, whose objects come in any order."""
    from tests.sim.followers import FollowerScenario
    from tests.sim.tier_scenario import TIERED

    chance = Random(f"followers {seed}")
    has_groups = chance.random() < 0.4
    shape = Shape(
        plain=1,
        idempotent=1,
        transactional=0 if has_groups else chance.choice((0, 1)),
        members=has_groups,
        seconds=12,
    )
    settings = {
        **BRISK,
        **REPLICATED,
        **TIERED,
        "group.min.session.timeout.ms": "1000",
        "lake.max.lag.ms": chance.choice(("-1", "300")),
        "lake.offsets.interval.ms": "1000" if has_groups else "-1",
    }
    settings |= {} if has_groups else chance.choice(RETENTIONS)
    deletes_records = not has_groups and chance.random() < 0.4
    return FollowerScenario(
        seed,
        shape,
        Plan(kinds=FOLLOWERS, every_seconds=0.6, scale=BRISK_SCALE),
        settings,
        deletes_records=deletes_records,
        replicas=chance.choice((1, 1, 2)),
    )


def large(seed: int) -> Scenario:
    """Seven brokers with Kafka's own timeouts, and everything at once."""
    shape = Shape(
        brokers=7, partitions=6, seconds=40, has_operator=True, near_readers=1, log_dirs=2
    )
    return Scenario(seed, shape, Plan(kinds=ALL, every_seconds=1.5))


FAMILIES: dict[str, Callable[[int], Scenario]] = {
    each.__name__: each
    for each in (
        one_broker,
        cluster,
        machines,
        lake,
        storeless,
        outages,
        laggards,
        repeats,
        leftovers,
        groups,
        moves,
        coordinators,
        zombies,
        transactions,
        tier,
        answers,
        reckless,
        switches,
        foreign,
        packing,
        diskless,
        to_diskless,
        both_ways,
        sleepers,
        followers,
        large,
    )
}


def run(family: str, seed: int) -> Scenario:
    """Run a seed; an AssertionError begins with the command that runs it again."""
    scenario = FAMILIES[family](seed)
    try:
        scenario.run()
    except AssertionError as error:
        raise AssertionError(f"python -m tests.sim {family} {seed}\n{error}") from error
    return scenario
