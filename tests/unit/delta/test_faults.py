"""Writers under any sequence of faults: every reported outcome of a commit is true, at every version."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.delta.actions import decode_actions, kafka_ds_info
from kafka_ds.delta.commit import CommitError, FateUnknown, PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file, version_of_commit
from kafka_ds.delta.store.store import NotWritten
from tests.fakes.clock import ManualClock
from tests.fakes.store import ALWAYS, MemoryStore, new_log

DAY_MS = 86_400_000
PAUSES = ("", "intruder", "nap", "clean-up")
FAULTS = ("", "lost answer", "timeout", "refused", "blind")


class HonestHistory(MemoryStore):
    """Remembers who first made each version: the truth, whatever is cleaned up later."""

    def __init__(self, clock):
        super().__init__(clock)
        self.first: dict[int, str] = {}
        self.faults: list[tuple[str, str]] = []
        self.busy = False
        self.script(self.fault, times=ALWAYS)

    def _store(self, path, data):
        version = version_of_commit(path.rpartition("/")[2])
        if version is not None and version > max(self.first, default=-1):
            self.first[version] = kafka_ds_info(decode_actions(data, path))["commitId"]
        super()._store(path, data)

    def fault(self, call):
        if self.busy or not self.faults:
            return call()
        pause, fault = self.faults.pop()
        if pause:
            self.meanwhile(pause)
        if fault == "timeout":
            raise TimeoutError("no answer")
        if fault == "refused":
            raise NotWritten("refused")
        won = call()
        if fault == "lost answer":
            raise TimeoutError("no answer")
        if fault == "blind":
            self.refuse(calls="read", times=3)
        return won

    def meanwhile(self, pause):
        """The writer is paused; others commit, time passes, the log is cleaned up."""
        self.busy = True
        other = DeltaLog(self, "table", clock=self.clock)
        for _ in range(2 if pause == "intruder" else 4):
            version = other.latest_version()
            other.commit(other.begin(PlainChange("OTHER")), read_version=version)
        if pause != "intruder":
            self.clock.ms += (2 if pause == "nap" else 8) * DAY_MS
        if pause == "clean-up":
            top = max(self.first)
            self.put_durable(f"table/_delta_log/{top:020d}.checkpoint.parquet", b"stands for one")
            self.put_durable("table/_delta_log/_last_checkpoint", b'{"version":%d}' % top)
            for version in range(top):
                self.delete(f"table/{commit_file(version)}")
            other.commit(other.begin(PlainChange("OTHER")), read_version=top)
        self.busy = False


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PAUSES), st.sampled_from(FAULTS)), max_size=25),
    st.integers(1, 6),
)
def test_what_was_told_is_true(faults, commits):
    clock = ManualClock()
    store = HonestHistory(clock)
    log = new_log(store, clock)
    store.faults = list(faults)
    attempts = []
    for _ in range(commits):
        attempt = log.begin(PlainChange("TEST"))
        attempts.append(attempt)
        for _ in range(3):
            try:
                log.commit(attempt, read_version=log.latest_version())
            except FateUnknown:
                continue
            except (CommitError, TimeoutError):
                break
            break
    truth = list(store.first.values())
    assert len(set(truth)) == len(truth), "no commit is in the log twice"
    assert sorted(store.first) == list(range(len(truth))), "no version is left out"
    for attempt in attempts:
        if attempt.won_version is not None:
            assert store.first[attempt.won_version] == attempt.commit_id
        if attempt.files_may_be_deleted:
            assert attempt.commit_id not in truth
        if attempt.commit_id not in truth:
            assert attempt.won_version is None
