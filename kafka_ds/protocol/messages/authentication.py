"""Pure: the messages of SASL authentication (KIP-43, KIP-152, KIP-368).

What the tokens mean is the mechanism's matter. A handshake of version 0 is followed by bare tokens in place of
requests.
"""

from kafka_ds.protocol.types import bytes_, i16, i64, message, string, v


@message(key=17, versions="0-1", flexible=None)
class SaslHandshakeRequest:
    """Begin authentication with a SASL mechanism."""

    mechanism: string


@message(key=17, versions="0-1", flexible=None)
class SaslHandshakeResponse:
    """Whether the mechanism is enabled, and the enabled ones."""

    error_code: i16 = v(default=0)
    mechanisms: list[string]


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """The client's next message of the mechanism."""

    auth_bytes: bytes_

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(auth_bytes=[hidden])"


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The server's next message of the mechanism, and the session lifetime."""

    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    auth_bytes: bytes_ = v(default=b"")
    session_lifetime_ms: i64 = v("1+", default=0)
