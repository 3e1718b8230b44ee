"""Shell: SaslAuthenticate 0-2: a token of a SASL mechanism's client, and its server's token (KIP-152).

- On a listener with SASL the connection's authenticator answers (`broker.server.authentication`):
  SASL_AUTHENTICATION_FAILED, after a delay and with a text that repeats nothing that was sent, or ILLEGAL_SASL_STATE
  if the order is wrong. Both close the connection.
- On any other listener, and from a client that has finished authentication: ILLEGAL_SASL_STATE, as in Kafka.

Versions: 1 for how long the session lasts (KIP-368); 2 flexible.
"""

from __future__ import annotations

from typing import NoReturn

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import SaslAuthenticateRequest


@serves(SaslAuthenticateRequest, versions="0-2")
def sasl_authenticate(request: SaslAuthenticateRequest, context: RequestContext) -> NoReturn:
    """Refuse it where no authenticator answers."""
    message = "SaslAuthenticate request received after successful authentication"
    raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, message)
