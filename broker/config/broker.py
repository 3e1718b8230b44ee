"""Pure: declares the settings of a broker: name, type, default, bounds, meaning.

Other parts are in `broker.worker.rpc`, `broker.log.config`, `broker.config.access` and `broker.config.listeners`;
`broker.config.loader` reads them from a file and a command line. A setting of Apache Kafka has Kafka's name, type and
bounds; defaults that differ are marked `ours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from broker.cleaner.rpc import CleanerSettings
from broker.config.endpoints import ListenerEndpoint, parse_endpoints, protocols_of
from broker.config.listeners import (
    ListenerConfig,
    names_of,
)
from broker.log.config import DAY_MS, LogConfig, LogManagerSettings
from kafka_ds.process.settings import (
    MAX_LONG,
    Setting,
    SettingValue,
    attribute_of,
    boolean,
    i16,
    i32,
    i64,
    settings_of,
    string,
    strings,
)

_MIB = 1 << 20
# The resource name for all brokers (Kafka's cluster-wide default).
ALL_BROKERS = ""
# Kafka's values of replica.selector.class (KIP-392).
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(LogManagerSettings, CleanerSettings, ListenerConfig):
    """The settings of one broker; `topic` holds the defaults of its topics.

    `origins` has the source of each given setting, for DescribeConfigs and errors.
    """

    # -- identity ----------------------------------------------------------------------------------
    broker_processes: int = i32(
        1,
        "How many brokers `kafka-ds broker` runs as one unit, each in a process of its own. Their settings are derived "
        "from one file: node.id and the ports of listeners and advertised.listeners grow by one from broker to broker, "
        "each has a folder of the name of its node.id in each of log.dirs, and the host's name is broker.rack unless "
        "one is given. metrics.port is the unit's, console.port that of its first broker.",
        low=1,
        high=256,
        ours=True,
    )
    broker_rack: str | None = string(
        None,
        "The rack of this broker: replicas go to as many racks as there are. Without it brokers of a unit have the "
        "host's name, others none.",
    )
    process_roles: tuple[str, ...] = strings(
        ("broker", "controller"),
        "The roles of this process: always both.",
        honours=("broker,controller",),
        ours=True,
    )

    # -- network ------------------------------------------------------------------------------------
    listeners: str = string(
        "PLAINTEXT://127.0.0.1:9092",
        "The addresses the broker listens on: NAME://host:port, separated by commas. No host means all addresses, "
        "port 0 any free port.",
        ours=True,
        fixed="listeners are opened at the start",
    )
    advertised_listeners: str | None = string(
        None,
        "The addresses that clients connect to, by listener name; without it, those of listeners.",
    )
    listener_security_protocol_map: str = string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name.",
        fixed="listeners are opened at the start",
    )
    metrics_port: int | None = i32(
        None,
        "The port that serves metrics to Prometheus; without it there is none.",
        low=0,
        high=65535,
        ours=True,
    )
    console_port: int | None = i32(
        None,
        "The port of the web console; without it there is none. What it shows, and to whom, is what clients of "
        "console.listener.name may know.",
        low=0,
        high=65535,
        ours=True,
    )
    console_host: str = string(
        "127.0.0.1",
        "The address at which the web console listens; a loopback address, unless console.listener.name has TLS or all "
        "listeners are PLAINTEXT.",
        ours=True,
    )
    console_listener_name: str | None = string(
        None,
        "The listener whose TLS and users the web console has: with SSL or SASL_SSL it speaks HTTPS, with SASL one "
        "logs in with name and password, or with a token (OAUTHBEARER). Without it, the first of listeners.",
        ours=True,
    )
    log_format: str = string(
        "text",
        "The format of the broker's own log on standard error: text, or json with one object per line.",
        choices=("text", "json"),
        ours=True,
    )
    log_level: str = string(
        "INFO",
        "The level of the broker's own log: ERROR, WARN, INFO, or DEBUG with a line for each request. Of lines of a "
        "kind at most 50 in 10 s are written, but all of DEBUG. While the broker runs, `kafka-configs --entity-type "
        "broker-loggers` changes it, for single loggers, too.",
        choices=("ERROR", "WARN", "INFO", "DEBUG"),
        ours=True,
    )
    schema_registry_url: str | None = string(
        None,
        "The http:// or https:// address of the schema registry by which `kafka-ds pipelines run` and "
        "`scan(typed=True)` decode Avro and Protobuf. The broker itself does not use it. Everybody who may describe "
        "brokers sees it, so it has no user and password.",
        ours=True,
        changeable=True,
    )
    connections_max_idle_ms: int = i64(
        600_000, "How long a connection may be idle before it is closed; -1 means for ever."
    )
    max_connections: int = i32(
        2**31 - 1, "The most connections that the broker holds at a time.", low=0, changeable=True
    )
    max_connections_per_ip: int = i32(
        2**31 - 1, "The most connections from one address at a time.", low=0, changeable=True
    )
    socket_listen_backlog_size: int = i32(
        50, "How many new connections may wait to be accepted.", low=1
    )
    socket_receive_buffer_bytes: int = i32(
        -1, "The size of a socket's receive buffer; -1 leaves it to the system.", low=-1, ours=True
    )
    socket_request_max_bytes: int = i32(
        100 * _MIB, "The largest request that is accepted, in bytes.", low=1
    )
    socket_send_buffer_bytes: int = i32(
        -1, "The size of a socket's send buffer; -1 leaves it to the system.", low=-1, ours=True
    )

    # -- cluster ------------------------------------------------------------------------------------
    auto_leader_rebalance_enable: bool = boolean(
        True, "Whether leadership goes back to preferred leaders without being asked."
    )
    broker_heartbeat_interval_ms: int = i32(
        2_000, "How often a broker sends heartbeats to the controller.", low=1
    )
    broker_session_timeout_ms: int = i32(
        9_000,
        "How long a broker may be silent before it is fenced, and the controller before another broker takes its "
        "place.",
        low=1,
    )
    controlled_shutdown_enable: bool = boolean(
        True, "Whether a broker that stops first hands the leadership of its partitions to others."
    )
    controller_lease_interval_ms: int = i32(
        2_000,
        "How often the active controller renews its lease in the lake.",
        low=1,
        ours=True,
    )
    lake_diskless_linger_ms: int = i32(
        50,
        "How long a record of a diskless topic waits for others, of all partitions that this broker leads, before they "
        "are put into the lake as one object. Each object costs a request to the store.",
        low=0,
        high=10_000,
        ours=True,
    )
    lake_diskless_batch_bytes: int = i32(
        8 << 20,
        "The size at which records of diskless topics are put into the lake without waiting for "
        "lake.diskless.linger.ms.",
        low=1 << 10,
        high=64 << 20,
        ours=True,
    )
    lake_diskless_buffer_bytes: int = i64(
        128 << 20,
        "How many bytes of diskless topics may wait for the store; beyond that producers are told to try again "
        "(NOT_ENOUGH_REPLICAS).",
        low=1 << 20,
        ours=True,
    )
    initial_broker_registration_timeout_ms: int = i32(
        60_000, "How long a starting broker tries to register before it stops.", low=1
    )
    inter_broker_listener_name: str | None = string(
        None,
        "The listener that brokers use among themselves; without it, that of security.inter.broker.protocol, or the "
        "first one.",
    )
    leader_imbalance_check_interval_seconds: int = i64(
        300,
        "How often the controller looks for partitions that are not led by their preferred leader.",
        low=1,
    )
    telemetry_max_bytes: int = i32(
        _MIB, "The most bytes of metrics that a client may push at once.", low=1
    )
    request_timeout_ms: int = i32(
        30_000, "How long this broker waits for another broker's answer.", low=1
    )
    unstable_api_versions_enable: bool = boolean(
        False, "Whether versions are served that Kafka calls unstable: InitProducerId 6."
    )

    # -- topics -------------------------------------------------------------------------------------
    auto_create_topics_enable: bool = boolean(
        True, "Whether a topic that a client asks for is created if it does not exist."
    )
    default_replication_factor: int = i32(
        1, "The replication factor of a topic that is created without one.", low=1
    )
    delete_topic_enable: bool = boolean(True, "Whether topics may be deleted.")
    errors_deadletterqueue_auto_create_topics_enable: bool = boolean(
        False,
        "Whether a share group's dead-letter topic is created with its first dead letter (KIP-1191).",
        changeable=True,
    )
    errors_deadletterqueue_topic_name_prefix: str = string(
        "dlq.",
        "What the name of a dead-letter topic must begin with; empty: with anything.",
        changeable=True,
    )
    num_partitions: int = i32(
        1, "The number of partitions of a topic that is created without one.", low=1
    )

    # -- log ----------------------------------------------------------------------------------------
    log_dir: str | None = string(None, "The log directory, if log.dirs is not set.")
    log_flush_start_offset_checkpoint_interval_ms: int = i32(
        60_000, "How often the log start offsets are written to disk.", low=0, honours=("60000",)
    )
    producer_id_expiration_ms: int = i32(
        DAY_MS,
        "How long the state of an idempotent producer is kept after its last batch.",
        low=1,
        changeable=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = i64(
        5_000, "How often the high watermarks are written to disk."
    )
    fetch_max_bytes: int = i32(
        55 * _MIB, "The most bytes in one Fetch response, whatever the client asked for.", low=1024
    )

    # -- fetching from leaders ----------------------------------------------------------------------
    num_replica_fetchers: int = i32(
        1,
        "How many fetchers, each with one request in flight, this broker runs per leader that it follows.",
        low=1,
        changeable=True,
    )
    follower_fetch_last_tiered_offset_enable: bool = boolean(
        False,
        "Whether a follower with an empty log, or one that needs records that only the lake has, continues at the "
        "end of the lake rather than at the start of its leader's local log.",
        changeable=True,
    )
    replica_fetch_backoff_ms: int = i32(
        1_000,
        "The longest pause before a follower fetches a partition again after an error.",
        low=0,
    )
    replica_fetch_max_bytes: int = i32(
        _MIB,
        "The most bytes of a partition in one fetch of a follower, but at least one batch.",
        low=0,
    )
    replica_fetch_min_bytes: int = i32(
        1, "How many bytes a leader collects before it answers a follower."
    )
    replica_fetch_response_max_bytes: int = i32(
        10 * _MIB,
        "The most bytes in one fetch of a follower, over all partitions, but at least one batch.",
        low=0,
    )
    replica_fetch_wait_max_ms: int = i32(
        500, "How long a leader waits for these bytes before it answers a follower anyway."
    )
    replica_socket_receive_buffer_bytes: int = i32(
        64 << 10, "The receive buffer of a follower's connection; -1 leaves it to the system."
    )
    replica_socket_timeout_ms: int = i32(
        30_000, "How long a follower waits for an answer before it reconnects."
    )
    max_incremental_fetch_session_cache_slots: int = i32(
        1_000, "How many incremental fetch sessions are kept; 0 means none.", low=0
    )

    # -- replication --------------------------------------------------------------------------------
    follower_replication_throttled_rate: int = i64(
        MAX_LONG,
        "The most bytes per second that this broker fetches for throttled replicas.",
        low=0,
        changeable=True,
    )
    leader_replication_throttled_rate: int = i64(
        MAX_LONG,
        "The most bytes per second that this broker sends to throttled replicas.",
        low=0,
        changeable=True,
    )
    replica_lag_time_max_ms: int = i64(
        30_000,
        "How long a follower may go without catching up with its leader before it is removed from the ISR.",
    )
    replica_selector_class: str | None = string(
        None,
        "What chooses the replica that a consumer reads from: RackAwareReplicaSelector prefers one in the consumer's "
        "rack. Without it that is the leader.",
        honours=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    )
    replication_quota_window_num: int = i32(
        11, "The number of samples over which the rate of throttled replication is measured.", low=1
    )
    replication_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )

    # -- moving between log directories ----------------------------------------------------------
    num_replica_alter_log_dirs_threads: int | None = i32(
        None,
        "How many replicas are moved to other log directories at a time; without it one per log directory.",
        low=1,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = i64(
        MAX_LONG,
        "The most bytes per second that are copied between log directories.",
        low=0,
        changeable=True,
    )
    alter_log_dirs_replication_quota_window_num: int = i32(
        11, "The number of samples over which that rate is measured.", low=1
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )

    # -- groups -------------------------------------------------------------------------------------
    group_consumer_assignment_interval_ms: int = i32(
        1_000,
        "How long after an assignment of a group of the consumer protocol the next one is made at the earliest "
        "(KIP-1263).",
        low=0,
        changeable=True,
    )
    group_consumer_assignors: tuple[str, ...] = strings(
        ("uniform", "range"),
        "The assignors of the consumer protocol (KIP-848); the first is for groups whose members ask for none.",
        choices=("uniform", "range"),
    )
    group_consumer_heartbeat_interval_ms: int = i32(
        5_000, "How often members of the consumer protocol send heartbeats.", low=1
    )
    group_consumer_max_assignment_interval_ms: int = i32(
        15_000, "The longest assignment interval that the broker or a group may be given.", low=0
    )
    group_consumer_max_heartbeat_interval_ms: int = i32(
        15_000, "The largest heartbeat interval that the broker or a group may be given.", low=1
    )
    group_consumer_max_session_timeout_ms: int = i32(
        60_000, "The longest session timeout that the broker or a group may be given.", low=1
    )
    group_consumer_max_size: int = i32(
        2**31 - 1, "The most members of a group of the consumer protocol.", low=1
    )
    group_consumer_migration_policy: str = string(
        "bidirectional",
        "Which way a group may change its protocol while it runs: to the consumer protocol (upgrade), back "
        "(downgrade), or both.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_min_assignment_interval_ms: int = i32(
        0, "The shortest assignment interval that the broker or a group may be given.", low=0
    )
    group_consumer_min_heartbeat_interval_ms: int = i32(
        5_000, "The smallest heartbeat interval that the broker or a group may be given.", low=1
    )
    group_consumer_min_session_timeout_ms: int = i32(
        45_000, "The shortest session timeout that the broker or a group may be given.", low=1
    )
    group_consumer_session_timeout_ms: int = i32(
        45_000,
        "How long a member of the consumer protocol may go without a heartbeat before it is removed.",
        low=1,
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = strings(
        ("classic", "consumer", "streams"),
        "The protocols of groups that this broker serves; classic has to be one of them. Deprecated, as in Kafka: the "
        "features group.version, streams.version and share.version turn protocols off for the whole cluster, and that "
        "of share groups is turned off by its feature alone.",
        choices=("consumer", "classic", "share", "streams"),
    )
    group_initial_rebalance_delay_ms: int = i32(
        3_000, "How long a new group waits for more members before its first rebalance ends.", low=0
    )
    group_max_session_timeout_ms: int = i32(
        1_800_000, "The longest session timeout that a member of the classic protocol may ask for."
    )
    group_max_size: int = i32(
        2**31 - 1, "The most members of a group of the classic protocol.", low=1
    )
    group_min_session_timeout_ms: int = i32(
        6_000, "The shortest session timeout that a member of the classic protocol may ask for."
    )
    group_share_assignment_interval_ms: int = i32(
        1_000,
        "How long after an assignment of a share group the next one is made at the earliest (KIP-1263).",
        low=0,
        changeable=True,
    )
    group_share_assignors: tuple[str, ...] = strings(
        ("simple",), "The assignor of share groups (KIP-932).", honours=("simple",)
    )
    group_share_delivery_count_limit: int = i32(
        5, "How often a share group delivers a record at most.", low=2, high=10
    )
    group_share_heartbeat_interval_ms: int = i32(
        5_000, "How often members of share groups send heartbeats.", low=1
    )
    group_share_max_assignment_interval_ms: int = i32(
        15_000,
        "The longest assignment interval that the broker or a share group may be given.",
        low=0,
    )
    group_share_max_delivery_count_limit: int = i32(
        10,
        "The largest delivery count limit that the broker or a group may be given.",
        low=5,
        high=25,
    )
    group_share_max_heartbeat_interval_ms: int = i32(
        15_000,
        "The largest heartbeat interval that the broker or a share group may be given.",
        low=1,
    )
    group_share_max_partition_max_record_locks: int = i32(
        4_000,
        "The most record locks that the broker or a group may be given.",
        low=2_000,
        high=10_000,
    )
    group_share_max_record_lock_duration_ms: int = i32(
        60_000,
        "The longest lock that the broker or a group may be given.",
        low=30_000,
        high=3_600_000,
    )
    group_share_max_session_timeout_ms: int = i32(
        60_000, "The longest session timeout that the broker or a share group may be given.", low=1
    )
    group_share_max_share_sessions: int = i32(
        2_000, "The most share sessions of this broker; at least group.share.max.size.", low=1
    )
    group_share_max_size: int = i32(200, "The most members of a share group.", low=1, high=1_000)
    group_share_min_assignment_interval_ms: int = i32(
        0,
        "The shortest assignment interval that the broker or a share group may be given.",
        low=0,
    )
    group_share_min_delivery_count_limit: int = i32(
        2,
        "The smallest delivery count limit that the broker or a group may be given.",
        low=2,
        high=5,
    )
    group_share_min_heartbeat_interval_ms: int = i32(
        5_000,
        "The smallest heartbeat interval that the broker or a share group may be given.",
        low=1,
    )
    group_share_min_partition_max_record_locks: int = i32(
        100, "The fewest record locks that the broker or a group may be given.", low=100, high=2_000
    )
    group_share_min_record_lock_duration_ms: int = i32(
        15_000, "The shortest lock that the broker or a group may be given.", low=1_000, high=30_000
    )
    group_share_min_session_timeout_ms: int = i32(
        45_000, "The shortest session timeout that the broker or a share group may be given.", low=1
    )
    group_share_partition_max_record_locks: int = i32(
        2_000,
        "How many records of a partition a share group may have in flight: locked, or waiting to be delivered again.",
        low=100,
        high=10_000,
    )
    group_share_record_lock_duration_ms: int = i32(
        30_000,
        "How long a member of a share group has a delivered record to itself.",
        low=1_000,
        high=3_600_000,
    )
    group_share_session_timeout_ms: int = i32(
        45_000,
        "How long a member of a share group may go without a heartbeat before it is removed.",
        low=1,
    )
    group_streams_acceptable_recovery_lag: int = i64(
        10_000,
        "At how many records behind a standby counts as caught up, as members of streams groups are told.",
        low=0,
    )
    group_streams_assignment_interval_ms: int = i32(
        1_000,
        "How long after an assignment of a streams group's tasks the next one is made at the earliest (KIP-1263).",
        low=0,
        changeable=True,
    )
    group_streams_heartbeat_interval_ms: int = i32(
        5_000, "How often members of streams groups send heartbeats.", low=1
    )
    group_streams_initial_rebalance_delay_ms: int = i32(
        3_000,
        "How long an empty streams group waits for more members before tasks are assigned.",
        low=0,
    )
    group_streams_max_assignment_interval_ms: int = i32(
        15_000,
        "The longest assignment interval that the broker or a streams group may be given.",
        low=0,
    )
    group_streams_max_heartbeat_interval_ms: int = i32(
        15_000,
        "The largest heartbeat interval that the broker or a streams group may be given.",
        low=1,
    )
    group_streams_max_session_timeout_ms: int = i32(
        60_000,
        "The longest session timeout that the broker or a streams group may be given.",
        low=1,
    )
    group_streams_max_size: int = i32(2**31 - 1, "The most members of a streams group.", low=1)
    group_streams_max_standby_replicas: int = i32(
        2, "The most standbys of a task that the broker or a streams group may be given.", low=0
    )
    group_streams_min_assignment_interval_ms: int = i32(
        0,
        "The shortest assignment interval that the broker or a streams group may be given.",
        low=0,
    )
    group_streams_min_heartbeat_interval_ms: int = i32(
        5_000,
        "The smallest heartbeat interval that the broker or a streams group may be given.",
        low=1,
    )
    group_streams_min_session_timeout_ms: int = i32(
        45_000,
        "The shortest session timeout that the broker or a streams group may be given.",
        low=1,
    )
    group_streams_min_task_offset_interval_ms: int = i32(
        15_000,
        "The shortest interval of task offsets that the broker or a streams group may be given.",
        low=1,
    )
    group_streams_num_standby_replicas: int = i32(
        0, "How many standbys a task of a streams group has that keeps a state.", low=0
    )
    group_streams_session_timeout_ms: int = i32(
        45_000,
        "How long a member of a streams group may go without a heartbeat before it is removed.",
        low=1,
    )
    group_streams_task_offset_interval_ms: int = i32(
        60_000,
        "How often members of streams groups say how far they have restored their tasks' states (Kafka Streams 4.4).",
        low=1,
    )
    offset_metadata_max_bytes: int = i32(
        4096, "The most bytes of metadata with a committed offset."
    )
    offsets_commit_timeout_ms: int = i32(
        5_000,
        "How long an append to __consumer_offsets may take to be replicated before the request fails.",
        low=1,
    )
    offsets_load_buffer_size: int = i32(
        5 * _MIB,
        "How many bytes of __consumer_offsets a new coordinator reads at a time.",
        low=1,
    )
    offsets_retention_check_interval_ms: int = i64(
        600_000, "How often the coordinator looks for expired offsets.", low=1
    )
    offsets_retention_minutes: int = i32(
        7 * 24 * 60,
        "How long a committed offset is kept while no member of its group subscribes to its topic: since its commit "
        "or, for an empty group of the classic protocol, since it became empty.",
        low=1,
    )
    offsets_topic_num_partitions: int = i32(
        50, "The number of partitions of __consumer_offsets when it is created.", low=1
    )
    offsets_topic_replication_factor: int = i16(
        3,
        "The replication factor of __consumer_offsets; if not set, at most the number of brokers.",
        low=1,
    )
    offsets_topic_segment_bytes: int = i32(
        100 * _MIB, "The segment.bytes of __consumer_offsets when it is created.", low=1 << 20
    )

    # -- transactions -------------------------------------------------------------------------------
    add_partitions_to_txn_retry_backoff_max_ms: int = i32(
        100,
        "How long a write that joins a transaction waits at most for the end of its producer's transaction before.",
        low=0,
    )
    add_partitions_to_txn_retry_backoff_ms: int = i32(
        20, "How long the broker waits before it asks again whether that has ended.", low=1
    )
    transaction_max_timeout_ms: int = i32(
        900_000, "The longest transaction timeout that a producer may ask for.", low=1
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False,
        "Whether producers may have transactions without a timeout (KIP-939). Also needs unstable.api.versions.enable.",
    )
    transactional_id_expiration_ms: int = i32(
        7 * DAY_MS, "How long an unused transactional id is remembered.", low=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = i32(
        10_000, "How often the coordinator aborts transactions that have timed out.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = i32(
        3_600_000, "How often the coordinator removes expired transactional ids.", low=1
    )
    transaction_state_log_num_partitions: int = i32(
        50, "The number of partitions of __transaction_state when it is created.", low=1
    )
    transaction_state_log_replication_factor: int = i16(
        3,
        "The replication factor of __transaction_state; if not set, at most the number of brokers.",
        low=1,
    )
    transaction_state_log_load_buffer_size: int = i32(
        5 * _MIB,
        "How many bytes of __transaction_state a new coordinator reads at a time.",
        low=1,
    )
    transaction_state_log_min_isr: int = i32(
        2, "The min.insync.replicas of __transaction_state when it is created.", low=1
    )
    transaction_state_log_segment_bytes: int = i32(
        100 * _MIB, "The segment.bytes of __transaction_state when it is created.", low=1 << 20
    )

    # -- share groups -------------------------------------------------------------------------------
    share_coordinator_load_buffer_size: int = i32(
        5 * _MIB,
        "How many bytes of __share_group_state a new coordinator reads at a time.",
        low=1,
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = i32(
        500,
        "How many updates of a share partition's state are written between two snapshots of it.",
        low=0,
        high=500,
    )
    share_coordinator_state_topic_min_isr: int = i16(
        2, "The min.insync.replicas of __share_group_state when it is created.", low=1
    )
    share_coordinator_state_topic_num_partitions: int = i32(
        50, "The number of partitions of __share_group_state when it is created.", low=1
    )
    share_coordinator_state_topic_replication_factor: int = i16(
        3,
        "The replication factor of __share_group_state; if not set, at most the number of brokers.",
        low=1,
    )
    share_coordinator_state_topic_segment_bytes: int = i32(
        100 * _MIB, "The segment.bytes of __share_group_state when it is created.", low=1 << 20
    )
    share_coordinator_write_timeout_ms: int = i32(
        5_000, "How long a share coordinator waits until a write is committed.", low=1
    )

    # -- not settings -------------------------------------------------------------------------------
    topic: LogConfig = LogConfig()
    origins: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    started: BrokerConfig | None = None
    listener_values: Mapping[str, SettingValue] = field(default_factory=dict)

    @property
    def endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """The endpoints of `listeners`."""
        return parse_endpoints("listeners", self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """The advertised listeners; host or port may be empty until the broker is running."""
        if self.advertised_listeners is None:
            return self.endpoints
        return parse_endpoints("advertised.listeners", self.advertised_listeners)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        return (
            self.inter_broker_listener_name
            or self.security_inter_broker_protocol
            or self.endpoints[0].name
        ).upper()

    @property
    def console_listener(self) -> str:
        """The name of the listener whose authentication the web console uses."""
        return (self.console_listener_name or self.endpoints[0].name).upper()

    @property
    def protocols(self) -> Mapping[str, str]:
        """The security protocol of each listener."""
        return protocols_of(self.endpoints, self.listener_security_protocol_map)

    def of_listener(self, listener: str, base: str, mechanism: str | None = None) -> SettingValue:
        """The value of a setting at a listener, or for a SASL mechanism there."""
        for name in names_of(listener, base, mechanism):
            if name in self.listener_values:
                return self.listener_values[name]
        return self.value_of(base) if base in settings_of(BrokerConfig) else None

    def value_of(self, name: str) -> SettingValue:
        """The value of a broker setting that is not a topic's default."""
        value: SettingValue = getattr(self, attribute_of(name))
        return value


@cache
def changeable() -> Mapping[str, Setting]:
    """The dynamic settings by broker-wide name, including the defaults of topics."""
    of_topics = {
        setting.synonyms[0][0]: setting
        for setting in settings_of(LogConfig).values()
        if setting.synonyms
    }
    own = settings_of(BrokerConfig).items()
    return of_topics | {name: setting for name, setting in own if setting.changeable}
