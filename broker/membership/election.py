"""Pure: when a broker considers the active controller dead, and claims its place (docs/concepts/controller.md).

Safety is not decided here: a claim wins or loses a version of the metadata log by put-if-absent. This file only leaves
a working controller alone. A sign of life is a lease that moves, an answer, or a new epoch in the log, by the broker's
own monotonic clock. Without one for a session timeout the broker asks the others (pre-vote) and claims if it answered
none lately; or if a majority hears nothing although the lease moves; or if the lease is not renewed for
`STUCK_SESSIONS` session timeouts while the store is read. A claim comes at once if it can depose no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from broker.membership.lease import Lease

NO_CONTROLLER = -1
# The last pause before a claim, so that of several brokers mostly one comes: a part of the session timeout.
JITTER_SHARE = 20
JITTER_MS_MAX = 500
# How many session timeouts a lease may stay unrenewed while its controller answers.
STUCK_SESSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before this moment, unless something is observed."""

    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """Ask the other brokers whether the controller of this epoch answers them."""

    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Try to become the controller instead of this one; `is_dead`: no broker heard it for a session timeout."""

    controller_id: int
    controller_epoch: int
    is_dead: bool
    reason: str


ElectionAction = Wait | AskPeers | Claim


class ElectionState(Enum):
    """This broker's view of the controller."""

    FOLLOWING = "following"
    ASKING = "asking"
    HESITATING = "hesitating"
    CLAIMING = "claiming"
    ACTIVE = "active"


class ControllerElection:
    """One broker's view of the controller's state."""

    def __init__(
        self,
        node_id: int,
        *,
        controller_id: int,
        controller_epoch: int,
        session_timeout_ms: int,
        lease_interval_ms: int,
        now_ms: int,
    ) -> None:
        """Begin with the controller that the log names at the start, `NO_CONTROLLER` and 0 for none."""
        self.stance = ElectionState.FOLLOWING
        self._node_id = node_id
        self._session_timeout_ms = session_timeout_ms
        self._lease_interval_ms = lease_interval_ms
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._lease: Lease | None = None
        # Since when each look has found the same lease; None after a look that failed.
        self._still_from_ms: int | None = None
        self._looked_ms = now_ms
        self._has_looked = False
        self._is_new = True
        self._sign_ms = now_ms
        # The last sign other than a lease that moves.
        self._wire_ms = now_ms
        self._is_majority_silent = False
        self._heard_ms: int | None = None
        self._due_ms = now_ms

    # -- observations --------------------------------------------------------------------------

    def knows(self, controller_id: int, controller_epoch: int, now_ms: int) -> None:
        """The metadata log names the controller; a new one has just written there."""
        if controller_epoch <= self._controller_epoch:
            return
        self._controller_id, self._controller_epoch = controller_id, controller_epoch
        self._heard_ms = None
        self._is_new = False
        self._still_from_ms = None
        self._sign(now_ms)

    def misses_lease(self) -> None:
        """The store did not answer: perhaps this broker has lost it."""
        self._still_from_ms = None

    def sees_lease(self, lease: Lease | None, now_ms: int) -> None:
        """The lease was read; None where there is none."""
        self._has_looked = True
        self._looked_ms = now_ms
        if self._still_from_ms is None:
            self._still_from_ms = now_ms
        if lease is None:
            return
        if lease.controller_epoch < self._controller_epoch:
            # The last one of a deposed controller lies over its successor's, which may well be alive.
            self._is_new = False
            return
        before = self._lease
        # Of an epoch before the last one: a claim failed, and the controller has written since.
        is_back = before is not None and lease.controller_epoch < before.controller_epoch
        if before is None or is_back or lease.follows(before):
            self._lease = lease
            self._still_from_ms = now_ms
            if before is not None:
                self._lease_moved(now_ms)

    def hears(self, controller_epoch: int, now_ms: int) -> None:
        """The controller of this epoch has answered."""
        if controller_epoch < self._controller_epoch:
            return
        self._is_new = False
        self._heard_ms = now_ms
        self._sign(now_ms)

    def paused(self, now_ms: int) -> None:
        """This process did not run for a while: the controller may have lived all the time."""
        grace_ms = min(2 * self._lease_interval_ms, self._session_timeout_ms)
        self._sign_ms = max(self._sign_ms, now_ms - self._session_timeout_ms + grace_ms)
        self._wire_ms = max(self._wire_ms, now_ms - self._session_timeout_ms + grace_ms)
        self._still_from_ms = None
        if self.stance in (ElectionState.ASKING, ElectionState.HESITATING):
            self.stance = ElectionState.FOLLOWING

    def peers_answered(
        self, heard_ms: Sequence[int], now_ms: int, *, brokers: int, chance: float
    ) -> None:
        """How long ago the controller answered each peer that could be asked, in milliseconds; -1 for never.

        `brokers`: how many are registered, this one and the controller among them. `chance` is in [0, 1): how long to
        hesitate.
        """
        if self.stance is not ElectionState.ASKING:
            return
        lately = [each for each in heard_ms if 0 <= each < self._session_timeout_ms]
        if lately:
            # When the last of them will have waited for a session timeout, too, if it hears nothing more.
            self.stance = ElectionState.FOLLOWING
            self._due_ms = now_ms + self._session_timeout_ms - min(lately)
            return
        self._is_majority_silent = 2 * (1 + len(heard_ms)) > brokers
        still_ms = self._sign_ms + self._session_timeout_ms
        if now_ms < still_ms and not self._is_majority_silent:
            self.stance = ElectionState.FOLLOWING
            self._due_ms = still_ms
            return
        self.stance = ElectionState.HESITATING
        jitter_ms = min(self._session_timeout_ms // JITTER_SHARE, JITTER_MS_MAX)
        self._due_ms = now_ms + int(chance * jitter_ms)

    def claim_won(self, controller_epoch: int) -> None:
        """The log holds the claim: this broker is the controller."""
        assert controller_epoch > self._controller_epoch, "a claim raises the epoch"
        self._controller_id, self._controller_epoch = self._node_id, controller_epoch
        self._is_new = False
        self.stance = ElectionState.ACTIVE

    def claim_failed(self, now_ms: int) -> None:
        """Another broker was faster, or the store did not answer: look again before the next claim."""
        self.stance = ElectionState.FOLLOWING
        self._due_ms = now_ms + self._lease_interval_ms

    def resigned(self, now_ms: int) -> None:
        """This broker is no longer the controller."""
        self.stance = ElectionState.FOLLOWING
        self._heard_ms = None
        self._sign(now_ms)

    # -- decisions -----------------------------------------------------------------------------

    def last_heard_ms(self, controller_id: int, controller_epoch: int, now_ms: int) -> int:
        """How long ago this controller answered; -1 for never, or if another one is known."""
        if (controller_id, controller_epoch) != (self._controller_id, self._controller_epoch):
            return -1
        if self.stance is ElectionState.ACTIVE:
            return 0
        return -1 if self._heard_ms is None else now_ms - self._heard_ms

    def next(self, now_ms: int) -> ElectionAction:
        """What to do now; an action other than `Wait` is returned once, and ends with its observation."""
        if self.stance in (ElectionState.ACTIVE, ElectionState.CLAIMING, ElectionState.ASKING):
            return Wait(until_ms=now_ms + self._session_timeout_ms)
        if now_ms < self._due_ms:
            return Wait(until_ms=self._due_ms)
        reason = self._why_at_once()
        if reason is not None:
            return self._claim(reason, is_dead=False)
        still_ms = 0 if self._still_from_ms is None else self._looked_ms - self._still_from_ms
        if still_ms >= STUCK_SESSIONS * self._session_timeout_ms:
            self._still_from_ms = None
            why = f"controller {self._controller_id} does not reach the store: its lease has stood still"
            return self._claim(f"{why} for {still_ms} ms", is_dead=False)
        silent_from_ms = self._wire_ms + self._session_timeout_ms
        if now_ms < silent_from_ms:
            self.stance = ElectionState.FOLLOWING
            return Wait(until_ms=silent_from_ms)
        if self.stance is ElectionState.HESITATING:
            return self._claim(
                f"controller {self._controller_id} was silent for {now_ms - self._wire_ms} ms",
                is_dead=True,
            )
        self.stance = ElectionState.ASKING
        return AskPeers(controller_epoch=self._controller_epoch)

    def _claim(self, reason: str, *, is_dead: bool) -> Claim:
        self.stance = ElectionState.CLAIMING
        return Claim(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            is_dead=is_dead,
            reason=reason,
        )

    def _why_at_once(self) -> str | None:
        if not self._has_looked:
            return None
        if self._controller_id == NO_CONTROLLER:
            return "the cluster has no controller"
        if self._controller_id == self._node_id:
            return "this broker was the controller"
        lease = self._lease
        if lease is None:
            return "the controller left no lease" if self._is_new else None
        holder = (lease.controller_id, lease.controller_epoch)
        if lease.released and holder == (self._controller_id, self._controller_epoch):
            return f"controller {self._controller_id} has released its lease"
        return None

    def _lease_moved(self, now_ms: int) -> None:
        """The controller lives, though perhaps no broker can reach it."""
        self._sign_ms = max(self._sign_ms, now_ms)
        if self.stance is ElectionState.HESITATING and not self._is_majority_silent:
            self.stance = ElectionState.FOLLOWING
            self._due_ms = self._sign_ms + self._session_timeout_ms

    def _sign(self, now_ms: int) -> None:
        self._sign_ms = max(self._sign_ms, now_ms)
        self._wire_ms = max(self._wire_ms, now_ms)
        if self.stance in (ElectionState.ASKING, ElectionState.HESITATING):
            self.stance = ElectionState.FOLLOWING
            self._due_ms = now_ms
