"""Shell: the object stores that a lake may lie in, by their addresses, and all in which they differ.

Each store's credentials and endpoint come from its own environment variables and files, as its client library finds
them; only what decides how the store is reached is read here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from kafka_ds.delta.store.refusals import Refusals, check_endpoint
from kafka_ds.delta.store.store import AZURE_SCHEMES, GCS_SCHEMES, S3_SCHEMES, UnsupportedStore

AWS_ENDPOINT = "AWS_ENDPOINT_URL"
GCS_ENDPOINT = "GOOGLE_BASE_URL"
AZURE_ENDPOINT = "AZURE_STORAGE_ENDPOINT"
_AZURE_DOMAIN = "dfs.core.windows.net"
_MAKE_IT = "make it, or change the lake's address"

BucketClient: TypeAlias = S3Store | GCSStore | AzureStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket, or what lies below a prefix of it."""

    name: str
    prefix: str
    root: str
    """Its address for other libraries."""
    aliases: tuple[str, ...]
    """All addresses of the bucket that other engines may write into a table's log."""
    client: Callable[..., BucketClient]
    config: Mapping[str, str]
    is_plain: bool
    """Whether it is reached by HTTP."""
    delta_options: Mapping[str, str]
    refusals: Refusals

    def relative(self, address: str) -> str:
        """The path below the root, if it is an address there; else unchanged."""
        for alias in self.aliases:
            root = _joined(alias, self.prefix) + "/"
            if address.startswith(root):
                return address[len(root) :]
        return address


def bucket_at(uri: str) -> Bucket:
    """The bucket behind an address with one of OBJECT_SCHEMES.

    Raises UnsupportedStore if it names none, or if the variable for the store's endpoint has no address.
    """
    parts = urlsplit(uri)
    if parts.scheme in S3_SCHEMES:
        return _s3(parts)
    return _gcs(parts) if parts.scheme in GCS_SCHEMES else _azure(parts)


def _s3(parts: SplitResult) -> Bucket:
    _check_named(parts, parts.netloc, "bucket: s3://<bucket>/<prefix>")
    endpoint, is_plain = _endpoint(AWS_ENDPOINT)
    return Bucket(
        name=parts.netloc,
        prefix=_prefix(parts),
        root=_joined(f"s3://{parts.netloc}", _prefix(parts)),
        aliases=tuple(f"{each}://{parts.netloc}" for each in S3_SCHEMES),
        client=S3Store,
        config={"endpoint": endpoint} if endpoint else {},
        is_plain=is_plain,
        delta_options={"aws_conditional_put": "etag", **_plainly(is_plain)},
        refusals=_S3,
    )


def _gcs(parts: SplitResult) -> Bucket:
    _check_named(parts, parts.netloc, "bucket: gs://<bucket>/<prefix>")
    endpoint, is_plain = _endpoint(GCS_ENDPOINT)
    return Bucket(
        name=parts.netloc,
        prefix=_prefix(parts),
        root=_joined(f"gs://{parts.netloc}", _prefix(parts)),
        aliases=(f"gs://{parts.netloc}",),
        client=GCSStore,
        config={"base_url": endpoint} if endpoint else {},
        is_plain=is_plain,
        delta_options=_plainly(is_plain),
        refusals=_GCS,
    )


def _azure(parts: SplitResult) -> Bucket:
    """`abfss://<container>@<account>.dfs.core.windows.net/…`; `az://<container>/…` has the account in a variable.

    Hadoop and `deltalake` know the first form only, with its domain. Where an endpoint is set, another cloud's address
    is not known: there `az://` stays what it is.
    """
    container, _, host = parts.netloc.partition("@")
    form = f"abfss://<container>@<account>.{_AZURE_DOMAIN}/<prefix>"
    _check_named(parts, container, f"container: {form}")
    account, _, domain = host.partition(".")
    endpoint, is_plain = _endpoint(AZURE_ENDPOINT)
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not account:
        raise UnsupportedStore(
            f"{parts.geturl()} names no account, and AZURE_STORAGE_ACCOUNT_NAME is not set: {form}"
        )
    if domain not in ("", _AZURE_DOMAIN):
        raise UnsupportedStore(
            f"{parts.geturl()} is not in {_AZURE_DOMAIN}: use az://<container>/<prefix>, "
            f"AZURE_STORAGE_ACCOUNT_NAME and {AZURE_ENDPOINT}"
        )
    full = f"{container}@{account}.{_AZURE_DOMAIN}"
    is_short = endpoint and not host
    return Bucket(
        name=container,
        prefix=_prefix(parts),
        root=_joined(f"az://{container}" if is_short else f"abfss://{full}", _prefix(parts)),
        aliases=(
            *(f"{each}://{container}" for each in AZURE_SCHEMES),
            *(f"{each}://{full}" for each in AZURE_SCHEMES),
        ),
        client=AzureStore,
        config={"account_name": account, **({"endpoint": endpoint} if endpoint else {})},
        is_plain=is_plain,
        delta_options=_plainly(is_plain),
        refusals=_AZURE,
    )


def _check_named(parts: SplitResult, name: str, form: str) -> None:
    if not name:
        raise UnsupportedStore(f"{parts.geturl()} names no {form}")


def _endpoint(variable: str) -> tuple[str, bool]:
    """The address in an environment variable, and whether it is plain HTTP."""
    address = os.environ.get(variable, "")
    if (complaint := check_endpoint(variable, address)) is not None:
        raise UnsupportedStore(complaint)
    return address, address.startswith("http://")


def _plainly(is_plain: bool) -> dict[str, str]:
    return {"allow_http": "true"} if is_plain else {}


def _prefix(parts: SplitResult) -> str:
    return parts.path.strip("/")


def _joined(bucket: str, prefix: str) -> str:
    return f"{bucket}/{prefix}".rstrip("/")


_S3 = Refusals(
    missing_bucket="NoSuchBucket",
    meanings={
        "NoSuchBucket": f"there is no such bucket: {_MAKE_IT}",
        "InvalidBucketName": "the lake's address names no bucket that there can be",
        "InvalidAccessKeyId": "the store does not know AWS_ACCESS_KEY_ID",
        "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID",
        "InvalidToken": "AWS_SESSION_TOKEN is wrong",
        "ExpiredToken": "AWS_SESSION_TOKEN has expired",
        "AccessDenied": "AWS_ACCESS_KEY_ID, or the machine's role, may not do this (s3:GetObject, s3:PutObject, "
        "s3:DeleteObject and s3:ListBucket are needed)",
        "RequestTimeTooSkewed": "this machine's clock is wrong",
        "AuthorizationHeaderMalformed": "AWS_REGION is not the bucket's",
        "PermanentRedirect": f"AWS_REGION or {AWS_ENDPOINT} is not the bucket's",
        "SlowDown": "the store throttles us",
    },
    permissions=frozenset(
        {
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidToken",
            "ExpiredToken",
            "AccessDenied",
            "RequestTimeTooSkewed",
        }
    ),
    # Another request for the same object was in progress.
    undecided=frozenset({"ConditionalRequestConflict", "OperationAborted"}),
    credentials_are="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are",
    role="role",
    way=f"{AWS_ENDPOINT}, AWS_REGION",
    moved=f"AWS_REGION or {AWS_ENDPOINT} is not the bucket's",
)
_GCS = Refusals(
    missing_bucket="NoSuchBucket",
    meanings={
        "NoSuchBucket": f"there is no such bucket: {_MAKE_IT}",
        "InvalidBucketName": "the lake's address names no bucket that there can be",
        "AuthenticationRequired": "the credentials in GOOGLE_APPLICATION_CREDENTIALS are not valid",
        "AccessDenied": "the account in GOOGLE_APPLICATION_CREDENTIALS, or the machine's, may not do this "
        "(storage.objects.create, delete, get and list are needed)",
        "SlowDown": "the store throttles us",
    },
    permissions=frozenset({"AuthenticationRequired", "AccessDenied"}),
    credentials_are="the credentials in GOOGLE_APPLICATION_CREDENTIALS are",
    role="service account",
    way=GCS_ENDPOINT,
)
_AZURE = Refusals(
    missing_bucket="ContainerNotFound",
    meanings={
        "ContainerNotFound": f"there is no such container: {_MAKE_IT}",
        "ContainerBeingDeleted": f"the container is being deleted: {_MAKE_IT}",
        "InvalidResourceName": "the lake's address names no container that there can be",
        "AuthenticationFailed": "AZURE_STORAGE_ACCOUNT_KEY, the SAS or the token is not the account's, or this "
        "machine's clock is wrong",
        "AuthorizationFailure": "AZURE_STORAGE_ACCOUNT_KEY is not the account's, or its network rules forbid this",
        "AuthorizationPermissionMismatch": "the identity needs the role Storage Blob Data Contributor",
        "KeyBasedAuthenticationNotPermitted": "the account takes no keys: give an identity the role Storage Blob "
        "Data Contributor",
        "ServerBusy": "the store throttles us",
    },
    permissions=frozenset(
        {
            "AuthenticationFailed",
            "AuthorizationFailure",
            "AuthorizationPermissionMismatch",
            "KeyBasedAuthenticationNotPermitted",
        }
    ),
    undecided=frozenset({"ContainerBeingDeleted"}),
    credentials_are="AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and AZURE_CLIENT_SECRET are",
    role="managed identity",
    way=f"the account's name, {AZURE_ENDPOINT}",
)
