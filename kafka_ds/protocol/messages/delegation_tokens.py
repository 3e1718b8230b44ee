"""Pure: the messages about delegation tokens (KIP-48, KIP-373).

Version 3 of two of them tells who has asked for a token, besides whose it is.
"""

from kafka_ds.protocol.types import bytes_, i16, i32, i64, message, string, struct, v


@struct
class CreatableRenewers:
    principal_type: string
    principal_name: string


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Create a token, for oneself or, since version 3, for another user."""

    owner_principal_type: string | None = v("3+", nullable="3+", default="")
    owner_principal_name: string | None = v("3+", nullable="3+", default="")
    renewers: list[CreatableRenewers]
    max_lifetime_ms: i64


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token, with its secret."""

    error_code: i16 = v(default=0)
    principal_type: string = v(default="")
    principal_name: string = v(default="")
    token_requester_principal_type: string = v("3+", default="")
    token_requester_principal_name: string = v("3+", default="")
    issue_timestamp_ms: i64 = v(default=0)
    expiry_timestamp_ms: i64 = v(default=0)
    max_timestamp_ms: i64 = v(default=0)
    token_id: string = v(default="")
    hmac: bytes_ = v(default=b"")
    throttle_time_ms: i32 = v(default=0)


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Let a token expire later."""

    hmac: bytes_
    renew_period_ms: i64


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """When it expires."""

    error_code: i16 = v(default=0)
    expiry_timestamp_ms: i64 = v(default=0)
    throttle_time_ms: i32 = v(default=0)


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Let a token expire at another time, or at once."""

    hmac: bytes_
    expiry_time_period_ms: i64


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """When it expires."""

    error_code: i16 = v(default=0)
    expiry_timestamp_ms: i64 = v(default=0)
    throttle_time_ms: i32 = v(default=0)


@struct
class DescribeDelegationTokenOwner:
    principal_type: string
    principal_name: string


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Ask for the tokens of these owners; null: of all."""

    owners: list[DescribeDelegationTokenOwner] | None = v(nullable="1+")


@struct
class DescribedDelegationTokenRenewer:
    principal_type: string
    principal_name: string


@struct
class DescribedDelegationToken:
    principal_type: string
    principal_name: string
    token_requester_principal_type: string = v("3+", default="")
    token_requester_principal_name: string = v("3+", default="")
    issue_timestamp: i64
    expiry_timestamp: i64
    max_timestamp: i64
    token_id: string
    hmac: bytes_
    renewers: list[DescribedDelegationTokenRenewer]


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens that the client may see, with their secrets."""

    error_code: i16 = v(default=0)
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: i32 = v(default=0)
