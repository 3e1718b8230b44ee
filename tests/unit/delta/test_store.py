"""The folder as a store: exclusive, durable, whole or absent whatever step a writer dies at."""

import builtins
import errno
import os
import threading
from contextlib import suppress
from functools import partial

import pytest

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.commit import FateUnknown, PlainChange, VersionsGone
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store import local as store_module
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import NotWritten, StoreNotExclusive, UnsupportedStore
from kafka_ds.delta.store.uri import open_store, probe
from kafka_ds.topic.names import CLUSTER_MARK, CLUSTER_METADATA
from tests.fakes.clock import ManualClock
from tests.fakes.process_death import ProcessDied
from tests.fakes.store import ALWAYS, FolderStore, MemoryStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(str(tmp_path))


class DyingOs:
    """The os module and open(), until the step numbered `dies_at`; from there on nothing is done."""

    def __init__(self, dies_at):
        self.dies_at = dies_at
        self.steps = []

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("link", "unlink", "fsync", "replace", "mkdir", "open"):
            return real
        return self.step(name, real)

    def step(self, name, real):
        def call(*args, **kwargs):
            if len(self.steps) >= self.dies_at:
                raise ProcessDied
            self.steps.append(name)
            return real(*args, **kwargs)

        return call


@pytest.fixture
def dies_at(monkeypatch):
    def arm(step):
        dying = DyingOs(step)
        monkeypatch.setattr(store_module, "os", dying)
        monkeypatch.setattr(
            store_module, "open", dying.step("create", builtins.open), raising=False
        )
        return dying

    yield arm
    monkeypatch.undo()


def steps_of(dies_at, action):
    dying = dies_at(1000)
    action()
    return dying.steps


def test_put_if_absent_syncs_before_it_links_and_the_folder_after(store, dies_at):
    steps = steps_of(dies_at, lambda: store.put_if_absent("a", b"1"))
    assert steps == ["create", "fsync", "link", "unlink", "open", "fsync"]


def test_a_new_folder_is_made_durable_in_the_one_above(store, dies_at):
    steps = steps_of(dies_at, lambda: store.put_if_absent("a/b/c", b"1"))
    assert steps[:6] == ["mkdir", "open", "fsync", "mkdir", "open", "fsync"]
    assert store.read("a/b/c") == b"1"


@pytest.mark.parametrize("step", range(6))
def test_a_writer_that_dies_at_any_step_leaves_all_or_nothing(tmp_path, store, dies_at, step):
    dies_at(step)
    with pytest.raises(ProcessDied):
        store.put_if_absent("log/1.json" if step < 0 else "1.json", b"whole")
    after = LocalStore(str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "os", os)
        patch.setattr(store_module, "open", builtins.open, raising=False)
        linked = after.size("1.json") is not None
        assert linked == (step > 2)
        if linked:
            assert after.read("1.json") == b"whole"
        assert after.put_if_absent("1.json", b"other") == (not linked)


@pytest.mark.parametrize("step", range(5))
def test_a_replacement_is_the_old_or_the_new(tmp_path, store, dies_at, step):
    LocalStore(str(tmp_path)).put_durable("hint", b"old")
    dies_at(step)
    with pytest.raises(ProcessDied):
        store.put_durable("hint", b"new")
    with open(tmp_path / "hint", "rb") as file:
        assert file.read() == (b"new" if step > 2 else b"old")


def test_what_fails_before_the_link_certainly_was_not_written(store, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(NotWritten, match=r"a/1\.json: No space left"):
        store.put_if_absent("a/1.json", b"x")
    monkeypatch.undo()
    assert store.list("") == ()


def test_what_fails_after_the_link_may_have_been_written(store, monkeypatch):
    monkeypatch.setattr(store_module, "sync_folder", lambda folder: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError) as caught:
        store.put_if_absent("1.json", b"x")
    assert not isinstance(caught.value, NotWritten)
    assert store.read("1.json") == b"x"


def test_files_are_listed_by_path_at_any_depth(store):
    for path in ("t/b/2", "t/a", "t/b/1", "u/c"):
        store.put_durable(path, b"12")
    assert [entry.path for entry in store.list("t")] == ["t/a", "t/b/1", "t/b/2"]
    assert [entry.path for entry in store.list("t", start_after="t/b/1")] == ["t/b/2"]
    assert [entry.path for entry in store.list("")] == ["t/a", "t/b/1", "t/b/2", "u/c"]
    assert store.list("nothing") == ()
    assert store.folders("") == ("t", "u")
    assert store.folders("nothing") == ()
    assert {entry.size for entry in store.list("")} == {2}


def test_reading(store):
    store.put_durable("a", b"0123456789")
    assert store.read_range("a", 3, 4) == b"3456"
    assert store.read_range("a", 8, 100) == b"89"
    assert store.size("a") == 10
    assert store.size("b") is None
    assert store.size("a/b") is None
    with pytest.raises(FileNotFoundError):
        store.read("b")
    store.delete("a")
    store.delete("a")
    assert store.size("a") is None


def test_a_file_written_in_pieces_appears_when_it_is_whole(store):
    with store.create("part/a") as file:
        file.write(b"1")
        assert store.size("part/a") is None
        file.write(b"2")
    assert store.read("part/a") == b"12"
    with pytest.raises(RuntimeError), store.create("part/b") as file:
        file.write(b"1")
        raise RuntimeError
    assert [entry.path for entry in store.list("part")] == ["part/a"]


def test_folders_that_were_removed_are_made_again(store, tmp_path):
    store.put_durable("t/a", b"1")
    (tmp_path / "t" / "a").unlink()
    (tmp_path / "t").rmdir()
    store.put_durable("t/a", b"2")
    assert store.read("t/a") == b"2"


def test_in_the_place_of_a_table_that_is_gone_nothing_is_decided(store, tmp_path):
    """A disk that is not mounted for a while: what was written in its place would be gone when it is back."""
    first, second = (f"t/_delta_log/{version:020d}.json" for version in (0, 1))
    assert store.put_if_absent(first, b"1")
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    with pytest.raises(NotWritten, match="the folder of its table is gone"):
        store.put_if_absent(second, b"2")
    assert not (tmp_path / "t").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "t")
    assert store.put_if_absent(second, b"2")


def test_in_an_older_copy_of_a_table_nothing_is_decided(store, tmp_path):
    """Restored from a backup, or a mount's stale replica: a commit behind the missing ones would hide all of them."""
    log = tmp_path / "t" / "_delta_log"
    for version in range(3):
        assert store.put_if_absent(f"t/_delta_log/{version:020d}.json", b"1")
    (log / f"{2:020d}.json").unlink()
    with pytest.raises(NotWritten, match="version 2, which it follows, is gone"):
        store.put_if_absent(f"t/_delta_log/{3:020d}.json", b"2")
    assert len(list(log.iterdir())) == 2
    (log / f"{2:020d}.checkpoint.parquet").write_bytes(b"as others may leave it")
    assert store.put_if_absent(f"t/_delta_log/{3:020d}.json", b"2")


@pytest.mark.parametrize("boundary", [1, 4])
def test_an_open_fate_ends_where_the_clean_up_has_passed_it(tmp_path, boundary):
    """A writer that slept: a commit in front of a hole is refused, but nothing would ever tell it of the end."""

    clock = ManualClock()
    store = FolderStore(tmp_path)
    sleeper, other = (DeltaLog(each, "t", clock=clock) for each in (store, LocalStore(store.root)))
    assert sleeper.create(schema_json="{}", partition_columns=(), configuration={})
    attempt = sleeper.begin(PlainChange("TEST"))
    store.refuse(OSError, times=ALWAYS)
    with pytest.raises(FateUnknown):
        sleeper.commit(attempt, read_version=0)
    store.mend()
    for version in range(5):
        other.commit(other.begin(PlainChange("TEST")), read_version=version)
    store.put_durable(f"t/_delta_log/{boundary:020d}.checkpoint.parquet", b"")
    for version in range(boundary):
        store.delete(f"t/{commit_file(version)}")
    clock.ms += 8 * DAY_MS
    if boundary == 1:
        assert sleeper.commit(attempt, read_version=0) == 6
    else:
        with pytest.raises(VersionsGone):
            sleeper.commit(attempt, read_version=0)
        assert not attempt.files_may_be_deleted


@pytest.mark.parametrize("mark", [None, "", "t/_delta_log"])
def test_a_lake_that_is_gone_is_not_begun_anew(tmp_path, mark):
    lake = tmp_path / "lake"
    store = LocalStore(str(lake), mark=mark)
    if mark is None:
        store.put_durable("t/lease", b"1")
        lake.rename(tmp_path / "elsewhere")
    for write in (store.put_durable, store.put_if_absent):
        with pytest.raises(OSError, match="the folder of the lake is gone"):
            write("t/lease", b"2")
    assert not lake.exists()


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_of_a_lake_that_is_gone_nothing_is_said_not_to_be_there(tmp_path, is_mount_point):
    """Whoever follows a table would take it for one that was never made, and a deletion for done."""
    lake = tmp_path / "lake"
    (lake / "t" / "_delta_log").mkdir(parents=True)
    store = LocalStore(str(lake), mark="t/_delta_log")

    def look() -> list[object]:
        looks = (store.read, store.size, store.list, store.folders, store.delete)
        return [*(partial(each, "t/a") for each in looks), partial(store.read_range, "t/a", 0, 1)]

    for each in look():
        with suppress(FileNotFoundError):
            assert not each()
    lake.rename(tmp_path / "elsewhere")
    if is_mount_point:
        lake.mkdir()
    why = "nothing of the lake is in its folder" if is_mount_point else "folder of the lake is gone"
    first = f"topics/new/_delta_log/{0:020d}.json"
    for each in [
        *look(),
        *(partial(write, first, b"") for write in (store.put_if_absent, store.put_durable)),
    ]:
        with pytest.raises(OSError, match=why) as error:
            each()
        assert not isinstance(error.value, FileNotFoundError)
    assert not is_mount_point or not any(lake.iterdir())


def test_who_has_read_the_cluster_s_log_makes_no_lease_in_an_empty_mount_point(tmp_path):
    """Nor does it say that there is none: a broker would claim the place of the controller."""
    lake, lease = tmp_path / "lake", f"{CLUSTER_METADATA}/_lease"
    store = LocalStore(str(lake), later_mark=CLUSTER_MARK)
    commit = f"{CLUSTER_MARK}/{0:020d}.json"
    assert store.put_if_absent(commit, b"1")
    assert store.read(commit) == b"1"
    lake.rename(tmp_path / "elsewhere")
    lake.mkdir()
    for each in (partial(store.read, lease), partial(store.put_durable, lease, b"2")):
        with pytest.raises(OSError, match="nothing of the lake is in its folder"):
            each()
    assert not any(lake.iterdir())


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_nothing_is_written_outside(store, path):
    with pytest.raises(AssertionError):
        store.put_durable(path, b"x")


def test_addresses(tmp_path):
    assert open_store(str(tmp_path)).uri("a") == f"{tmp_path}/a"
    assert open_store(f"file://{tmp_path}").uri("a") == f"{tmp_path}/a"
    assert open_store("s3://bucket/x/y/").uri("a") == "s3://bucket/x/y/a"
    assert open_store("s3a://bucket").uri("a") == "s3://bucket/a"
    assert open_store("gs://bucket/x").uri("a") == "gs://bucket/x/a"
    for none in ("s3://", "gs:///x"):
        with pytest.raises(UnsupportedStore, match="names no bucket"):
            open_store(none)
    with pytest.raises(UnsupportedStore, match="^hdfs://host/x is not a folder or an"):
        open_store("hdfs://host/x")
    with pytest.raises(UnsupportedStore, match="address is empty"):
        open_store("")


def test_addresses_of_azures(monkeypatch):
    for name in os.environ:
        if name.startswith("AZURE"):
            monkeypatch.delenv(name)
    host = "account.dfs.core.windows.net"
    full = open_store(f"abfss://lake@{host}/x")
    assert full.uri("a") == f"abfss://lake@{host}/x/a"
    for other in (f"abfs://lake@{host}", "az://lake", "abfss://lake"):
        assert full.uri(f"{other}/x/a") == full.uri("a")
    for wrong, why in (
        ("az://lake/x", "names no account, and AZURE_STORAGE_ACCOUNT_NAME is not set: abfss://"),
        (f"abfss://@{host}/x", "names no container: abfss://<container>@<account>"),
        (
            "abfss://lake@account.dfs.core.elsewhere/x",
            "use az://<container>/<prefix>, AZURE",
        ),
    ):
        with pytest.raises(UnsupportedStore, match=why):
            open_store(wrong)
    assert open_store("abfs://lake@account/x").uri("a") == full.uri("a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store("az://lake/x").uri("a") == full.uri("a")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://store.example.com")
    short = open_store("az://lake/x")
    assert short.uri(f"abfss://lake@{host}/x/a") == short.uri("a") == "az://lake/x/a"


def test_the_probe_passes_a_folder_and_leaves_nothing(store):
    probe(store)
    assert store.list("") == ()


def racy(store):
    """Looks first and writes then, as a store does that has no conditional put: serially it is right."""
    looked = threading.Barrier(2)

    def put(call):
        won = call.path not in store.objects
        if won:
            try:
                looked.wait(timeout=0.2)
            except threading.BrokenBarrierError:
                looked.reset()
            store.put_durable(call.path, *call.rest)
        return won

    return put


def deaf(store):
    """Takes every write for a win."""
    return lambda call: store.put_durable(call.path, *call.rest) or True


@pytest.mark.parametrize("kind", [racy, deaf])
def test_a_store_that_lets_two_win_is_refused(kind):
    store = MemoryStore()
    store.script(kind(store), path="*", times=ALWAYS)
    with pytest.raises(StoreNotExclusive, match=r"memory:/: . of 8 concurrent conditional writes"):
        probe(store)
    assert store.objects == {}


def forgetful(store, times):
    """Reports a lost race for this many writes."""
    store.script(lambda call: call() and False, path="*", times=times)


def busy(store, times):
    """Refuses this many writes."""
    store.refuse(OSError("SlowDown"), path="*", times=times)


@pytest.mark.parametrize(("kind", "says"), [(forgetful, "_probe-"), (busy, "SlowDown")])
def test_a_store_that_loses_answers_or_throttles_is_not_taken_for_one_that_lets_two_win(kind, says):
    store = MemoryStore()
    kind(store, 5)
    probe(store)
    assert store.objects == {}
    kind(store, ALWAYS)
    with pytest.raises(OSError, match=says):
        probe(store)


def test_a_store_that_is_away_is_not_asked_for_ever_nor_to_delete():
    store = MemoryStore()
    busy(store, 1_000)
    with pytest.raises(OSError, match="SlowDown"):
        probe(store, writers=8, patience_seconds=0)
    assert store.count("put_if_absent") == 8
    assert store.count("delete") == 0


def test_a_store_that_knows_nobody_is_asked_once():
    store = MemoryStore()
    store.refuse(PermissionError, path="*", times=ALWAYS)
    with pytest.raises(PermissionError):
        probe(store, writers=1)
    assert store.count("put_if_absent") == 1


def test_a_store_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        probe(LocalStore(str(tmp_path / "file")))


class ForgetfulDisk:
    """A folder's fsync that fails drops what it was to write; the next one succeeds without that."""

    def __init__(self, monkeypatch):
        self.waiting, self.durable, self.failures = set(), set(), 0
        for name in ("link", "replace", "mkdir"):
            monkeypatch.setattr(store_module.os, name, self._noting(getattr(os, name)))
        monkeypatch.setattr(store_module, "sync_folder", self._sync)

    def _noting(self, act):
        def noted(*paths):
            act(*paths)
            self.waiting.add(paths[-1])

        return noted

    def _sync(self, folder):
        written = {each for each in self.waiting if os.path.dirname(each) == folder}
        self.waiting -= written
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "the disk is gone for a moment")
        self.durable |= written


def test_a_name_whose_fsync_failed_is_made_anew(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    store.put_if_absent("t/_delta_log/00000000000000000000.json", b"0")
    disk = ForgetfulDisk(monkeypatch)
    disk.failures = 2
    path = "t/_delta_log/00000000000000000001.json"
    target = f"{tmp_path}/{path}"
    for _ in range(2):
        with pytest.raises(OSError, match="gone for a moment"):
            store.put_if_absent(path, b"1")
    assert target not in disk.durable and store.read(path) == b"1"
    assert not store.put_if_absent(path, b"another's")
    assert target in disk.durable and store.read(path) == b"1"
    # The name behind it is not durable without it.
    disk.failures, later = 1, "t/_delta_log/00000000000000000002.json"
    with pytest.raises(OSError, match="gone for a moment"):
        store.put_if_absent(later, b"2")
    assert store.put_if_absent("t/_delta_log/00000000000000000003.json", b"3")
    assert {f"{tmp_path}/{later}", f"{tmp_path}/t/_delta_log/{3:020d}.json"} <= disk.durable


def test_a_folder_whose_fsync_failed_is_made_anew(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    disk = ForgetfulDisk(monkeypatch)
    disk.failures = 1
    with pytest.raises(OSError, match="gone for a moment"):
        store.put_durable("t/a.parquet", b"a")
    store.put_durable("t/a.parquet", b"a")
    assert {f"{tmp_path}/t", f"{tmp_path}/t/a.parquet"} <= disk.durable
