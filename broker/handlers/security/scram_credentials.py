"""Shell: DescribeUserScramCredentials 0, AlterUserScramCredentials 0: the credentials of SCRAM users (KIP-554).

- Alter: clients send a salt and the salted password; the broker stores the keys that are derived from them to check
  proofs. UNACCEPTABLE_CREDENTIAL for an empty user, for iterations below 4096 or above 16384, without a salt or a
  password; UNSUPPORTED_SASL_MECHANISM; RESOURCE_NOT_FOUND if a deleted credential does not exist; DUPLICATE_RESOURCE
  for a user who is named twice in a request, also with two mechanisms (KRaft's rule: Kafka with ZooKeeper took those).
- After the answer this broker authenticates with the new credentials, the others when they have read the metadata.
- NOT_CONTROLLER if there was another controller, even for a moment, between the write of a secret's object and the
  decision: that controller did not know the object and may have removed it.
- Describe: mechanisms and iterations, nothing else. RESOURCE_NOT_FOUND for a user without credentials,
  DUPLICATE_RESOURCE for one that is asked for twice. Null or no users: all.
- The secret is in an object of the lake that no table names (docs/decisions/0016-scram-credentials.md).
  KAFKA_STORAGE_ERROR if it cannot be written; then nothing has changed.

Versions: 0.
Left out: nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.controller.controller import Controller
from broker.controller.draft import ControllerResult
from broker.controller.security import ScramDeletion, ScramUpsertion
from broker.registry import RequestContext, serves
from broker.security.authentication.scram_users import MECHANISMS, credential_of
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka_ds.protocol.messages.security import (
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsResult,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from broker.security.authentication.credentials import Credentials

_NUMBERS = {name: number for number, name in MECHANISMS.items()}


@serves(AlterUserScramCredentialsRequest, versions="0", forwarded=True)
async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Delete and set credentials, or say why not."""
    credentials = context.broker.security.credentials
    deletions = [
        ScramDeletion(user=each.name, mechanism=MECHANISMS.get(each.mechanism))
        for each in request.deletions
    ]
    epoch = context.broker.metadata.controller_epoch
    upsertions = await _written(request.upsertions, credentials)
    alterations: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    over: list[str] = []

    def decide(controller: Controller) -> ControllerResult[dict[str, KafkaError | None]]:
        if upsertions and controller.image.controller_epoch != epoch:
            message = "another controller came while the credentials were written"
            raise KafkaError(ErrorCode.NOT_CONTROLLER, message)
        present = controller.image.security.credentials
        decision = controller.alter_scram(deletions, upsertions)
        for each in alterations:
            known = present.get((each.user, each.mechanism or ""))
            if known is not None and decision.result[each.user] is None:
                over.append(known.credential)
        return decision

    results = await context.broker.metadata_driver.decide(decide)
    refused = [each.credential for each in upsertions if results[each.user] is not None]
    await credentials.delete([name for name in (*over, *refused) if name])
    await credentials.settled()
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user)
            if refusal is None
            else AlterUserScramCredentialsResult(
                user=user, error_code=refusal.code, error_message=refusal.message
            )
            for user, refusal in results.items()
        ]
    )


async def _written(
    wanted: list[ScramCredentialUpsertion], credentials: Credentials
) -> list[ScramUpsertion]:
    """Write the credentials to the store. What is invalid gets no object: the controller refuses it."""
    useful = {
        index: credential_of(
            MECHANISMS[each.mechanism],
            bytes(each.salt),
            bytes(each.salted_password),
            each.iterations,
        )
        for index, each in enumerate(wanted)
        if each.mechanism in MECHANISMS and each.salt and each.salted_password
    }
    try:
        names = await credentials.write(list(useful.values()))
    except OSError as error:
        message = f"the credentials could not be written: {error}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from None
    by_index = dict(zip(useful, names, strict=True))
    return [
        ScramUpsertion(
            user=each.name,
            mechanism=MECHANISMS.get(each.mechanism),
            iterations=each.iterations,
            credential=by_index.get(index, ""),
            is_complete=index in by_index,
        )
        for index, each in enumerate(wanted)
    ]


@serves(DescribeUserScramCredentialsRequest, versions="0")
def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Tell which credentials there are."""
    infos: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), entry in context.broker.metadata.security.credentials.items():
        infos.setdefault(user, []).append(
            CredentialInfo(mechanism=_NUMBERS[mechanism], iterations=entry.iterations)
        )
    counts = Counter(each.name for each in request.users or ()) or Counter(infos.keys())
    return DescribeUserScramCredentialsResponse(
        results=[_described(user, count, infos) for user, count in counts.items()]
    )


def _described(
    user: str, count: int, infos: dict[str, list[CredentialInfo]]
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, credential_infos=[])
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
    elif user not in infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
    else:
        result.credential_infos = infos[user]
    return result
