"""What several tests use: allow."""

from broker.config.access import STANDARD_AUTHORIZER
from broker.metadata.acls import ResourceType
from broker.principal import (
    Principal,
)
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    CreateAclsRequest,
)
from kafka_ds.protocol.messages.security import AclCreation
from tests.in_process import (
    InProcess,
)

ALICE = Principal("User", "alice")


SETTINGS = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:ANONYMOUS"}


TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def allow(
    broker: InProcess, kind: int, name: str, *operations: int, permission: int = 3
) -> None:
    creations = [
        AclCreation(resource_type=kind, resource_name=name, principal="User:alice", host="*",
                    operation=operation, permission_type=permission)
        for operation in operations
    ]  # fmt: skip
    answer = await broker.ask(CreateAclsRequest(creations=creations), 3)
    assert [each.error_code for each in answer.results] == [0] * len(creations)
