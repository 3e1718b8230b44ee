"""What models of groups have in common: a desk, clients that leave, a log that refuses records."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafka_ds.protocol.errors import ErrorCode
from tests.unit.coordinator.group.group_desk import GroupDesk

BEGIN_ANEW = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
LATER = {ErrorCode.COORDINATOR_NOT_AVAILABLE}


class GroupMachine(RuleBasedStateMachine):
    """One group; `begin` of a subclass makes the desk."""

    desk: GroupDesk
    clients: list[Any]

    @rule()
    def the_log_refuses(self) -> None:
        self.desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE

    @invariant()
    def the_log_says_it_all(self) -> None:
        if hasattr(self, "desk"):
            self.desk.check_replay()


class BeatingGroupMachine(GroupMachine):
    """Its clients send heartbeats, by which they leave as well."""

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), says_so=st.booleans())
    def one_leaves(self, data: st.DataObject, says_so: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if says_so:
            self.beat(client, member_epoch=-1)

    def beat(self, client: Any, **more: Any) -> None:
        """Let a client send a heartbeat."""
        raise NotImplementedError
