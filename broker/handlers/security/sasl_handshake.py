"""Shell: SaslHandshake 0-1: the mechanism by which a client will authenticate (KIP-43).

- On a listener with SASL the connection's authenticator answers (`broker.server.authentication`), with the
  mechanisms that the listener offers: UNSUPPORTED_SASL_MECHANISM for another one, ILLEGAL_SASL_STATE if the order is
  wrong.
- On any other listener, and from a client that has finished authentication: ILLEGAL_SASL_STATE, as in Kafka.

Versions: after 0 bare tokens follow, after 1 SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

from typing import NoReturn

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import SaslHandshakeRequest


@serves(SaslHandshakeRequest, versions="0-1")
def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> NoReturn:
    """Refuse it where no authenticator answers."""
    raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
