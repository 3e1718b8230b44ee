"""Pure: what the tier counts, under Kafka's names where Kafka has one (KIP-405).

Rules of this file: totals only grow; who shows them makes rates of them.
"""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class TierMetrics:
    """Totals since the broker started."""

    copy_requests: int = 0
    copy_bytes: int = 0
    copy_errors: int = 0
    lake_bytes: int = 0
    fetch_requests: int = 0
    fetch_bytes: int = 0
    fetch_errors: int = 0
    reads_waiting: int = 0
    worker_starts: int = 0
    foreign_commits: int = 0
    """Commits of other engines that put rows into topics' tables."""

    def copied(self, log_bytes: int, lake_bytes: int, ranges: int) -> None:
        """Ranges of one partition are FINISHED."""
        self.copy_requests += ranges
        self.copy_bytes += log_bytes
        self.lake_bytes += lake_bytes

    def fetched(self, size_bytes: int) -> None:
        """A cold read was answered."""
        self.fetch_requests += 1
        self.fetch_bytes += size_bytes

    def values(self) -> dict[str, int]:
        """The totals by name."""
        return {
            "RemoteCopyRequests": self.copy_requests,
            "RemoteCopyBytes": self.copy_bytes,
            "RemoteCopyErrors": self.copy_errors,
            "RemoteLakeBytes": self.lake_bytes,
            "RemoteFetchRequests": self.fetch_requests,
            "RemoteFetchBytes": self.fetch_bytes,
            "RemoteFetchErrors": self.fetch_errors,
            "RemoteLogReaderTaskQueueSize": self.reads_waiting,
            "TierWorkerStarts": self.worker_starts,
            "RemoteForeignCommits": self.foreign_commits,
        }
