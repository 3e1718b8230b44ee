"""Each setting that Apache Kafka changes at run time (KIP-226) changes here, or is refused by name with a reason."""

from pathlib import Path

import pytest

from broker.config.broker import changeable
from broker.config.dynamic import with_changes
from broker.config.loader import broker_settings, load
from broker.config.unserved import unserved_settings
from kafka_ds.process.settings import ConfigError
from tests.unit.config.kafkas_dynamic import KAFKAS

ROOT = Path(__file__).parents[3]
# The test that sees the effect of each setting that changes.
SEEN = """
tests/integration/test_dynamic_settings.py
    test_a_running_worker_gets_more_threads_and_the_next_one_has_them
        remote.log.index.file.cache.total.size.bytes remote.log.reader.threads
    test_copies_to_the_lake_wait_for_a_rate_that_is_set_while_it_runs remote.log.manager.copy.max.bytes.per.second
tests/integration/test_moves_process.py
    test_a_replica_moves_under_load_and_through_a_crash replica.alter.log.dirs.io.max.bytes.per.second
tests/integration/test_tier_replicas.py
    test_a_new_replica_is_what_it_would_be_had_it_followed_all_along follower.fetch.last.tiered.offset.enable
tests/peer/test_cluster_tools.py
    test_a_move_under_way_is_listed_and_cancelled follower.replication.throttled.rate
tests/unit/compaction/test_settings.py
    test_as_many_logs_are_cleaned_at_a_time_as_the_setting_says log.cleaner.threads
    test_memory_is_that_of_the_settings_in_force
        log.cleaner.dedupe.buffer.size log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    test_the_limit_of_bytes_reaches_the_child_at_once log.cleaner.io.max.bytes.per.second
    test_who_has_nothing_to_do_looks_when_the_back_off_changes log.cleaner.backoff.ms
tests/unit/coordinator/group/test_assignment_interval.py
    test_the_interval_changes_while_the_broker_runs group.consumer.assignment.interval.ms
    test_share_members_wait_for_the_next_target_too group.share.assignment.interval.ms
tests/unit/coordinator/group/test_streams.py
    test_targets_follow_each_other_after_a_while group.streams.assignment.interval.ms
tests/unit/handlers/test_admin.py
    test_cordoned_directories_get_no_new_replicas cordoned.log.dirs
tests/unit/handlers/test_configs.py
    test_limits_of_connections_are_set_while_it_runs
        max.connection.creation.rate max.connections max.connections.per.ip
    test_no_limit_of_connections_keeps_a_broker_from_starting max.connections.per.ip.overrides
    test_what_topics_inherit_reaches_their_open_logs *
tests/unit/handlers/test_followers.py
    test_a_throttled_follower_gets_no_more_than_the_rate leader.replication.throttled.rate
tests/unit/handlers/test_offsets.py
    test_a_lake_that_does_not_answer_is_not_waited_for_for_ever remote.list.offsets.request.timeout.ms
tests/unit/log/test_directories.py
    test_logs_are_opened_by_several_threads_and_it_is_told_how_far num.recovery.threads.per.data.dir
tests/unit/log/test_upkeep.py
    test_a_silent_producer_is_forgotten_after_producer_id_expiration_ms producer.id.expiration.ms
tests/unit/remote/test_reads.py
    test_bytes_of_cold_reads_use_up_the_quota_which_may_change remote.log.manager.fetch.max.bytes.per.second
    test_what_is_not_there_in_time_is_an_answer_without_records remote.fetch.max.wait.ms
tests/unit/replica/test_fetchers.py
    test_partitions_are_spread_anew_when_num_replica_fetchers_changes num.replica.fetchers
tests/unit/security/test_gssapi.py
    test_a_broker_asks_for_the_service_that_is_set_while_it_runs sasl.kerberos.service.name
    test_rules_are_a_listeners_and_what_has_no_effect_is_said sasl.kerberos.principal.to.local.rules
tests/unit/security/test_keys.py
    test_a_listener_goes_on_with_new_keys_of_the_same_holder
        ssl.keystore.location ssl.keystore.type ssl.truststore.location ssl.truststore.type
tests/unit/share/test_dead_letter_queue.py
    test_records_are_copied_to_a_topic_that_is_created errors.deadletterqueue.auto.create.topics.enable
tests/unit/share/test_dead_letters.py
    test_topics errors.deadletterqueue.topic.name.prefix
tests/spark/test_pipelines_avro.py
    test_the_brokers_name_the_registry_while_the_pipelines_run schema.registry.url
"""
THREADS = ("log.cleaner.threads", "num.recovery.threads.per.data.dir", "remote.log.reader.threads")


@pytest.mark.parametrize("name", KAFKAS)
def test_a_dynamic_setting_changes_here_or_is_refused_with_a_reason(name: str) -> None:
    if name in changeable():
        return
    with pytest.raises(ConfigError) as refused:
        with_changes(load(None), {"": {name: "1"}})
    setting, text = broker_settings().get(name), str(refused.value)
    assert text.startswith(name)
    if setting is None:
        assert text.endswith(f"is not supported by this broker: {unserved_settings()[name].says}")
    elif setting.sensitive:
        assert "is a secret" in text
    else:
        assert setting.fixed
        assert text.endswith(setting.fixed)


def test_of_each_setting_that_changes_a_test_sees_the_effect() -> None:
    seen: list[str] = []
    text = ""
    for word in SEEN.split():
        if word.startswith("tests/"):
            text = (ROOT / word).read_text()
        elif word.startswith("test_"):
            assert f"def {word}(" in text, word
        else:
            # Settings that topics inherit are listed where they are seen.
            seen += (
                [key for key in changeable() if key not in broker_settings()]
                if word == "*"
                else [word]
            )
    assert sorted(seen) == sorted(changeable())


@pytest.mark.parametrize("name", THREADS)
def test_a_number_of_threads_is_in_force_when_it_is_changed(name: str) -> None:
    changed = with_changes(load(None), {"": {name: "4"}})
    assert changed.value_of(name) == 4
