"""Pure: what an object store's refusals mean for the operator.

- A store answers with one of S3's codes in a document, and without one to HEAD; the client library has words of its
  own. A message first says what is wrong, with the variable or setting to change; the store's own words follow.
- A missing bucket is not a missing object: the one is a mistake, the other an everyday answer.
- No secret is ever in a text: names of variables are, their values are not.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
NO_SUCH_BUCKET = "NoSuchBucket"

# By S3's own codes.
_MEANINGS = {
    NO_SUCH_BUCKET: "there is no such bucket: make it, or change lake.uri",
    "InvalidBucketName": "lake.uri names no bucket that there can be",
    "InvalidAccessKeyId": "the store does not know AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID",
    "InvalidToken": "AWS_SESSION_TOKEN is wrong",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired",
    "AccessDenied": "AWS_ACCESS_KEY_ID, or the machine's role, may not do this (s3:GetObject, s3:PutObject, "
    "s3:DeleteObject and s3:ListBucket are needed)",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "AuthorizationHeaderMalformed": "AWS_REGION is not the bucket's",
    "PermanentRedirect": "AWS_REGION or AWS_ENDPOINT_URL is not the bucket's",
    "SlowDown": "the store throttles us",
}
_PERMISSIONS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "AccessDenied",
    "RequestTimeTooSkewed",
}
# Where a client looks for a machine's role when no other credentials are configured.
_METADATA_SERVICE = "//169.254.169.254/"


def is_missing_bucket(text: str) -> bool:
    """Whether it is the bucket that was not found."""
    return _code_of(text) == NO_SUCH_BUCKET


def is_permission(text: str) -> bool:
    """Whether the store does not know the credentials, or refuses them."""
    return _code_of(text) in _PERMISSIONS or _status_of(text) in ("401", "403")


def explained(text: str) -> str:
    """What is wrong and what to change, then the store's own words on one line."""
    # The library's text goes on with its whole source after the first line.
    words = text.partition("\n")[0].strip()
    meaning = _meaning_of(words)
    return f"{meaning} ({words})" if meaning else words


def check_endpoint(address: str) -> str | None:
    """Why this is not the address of a store; None if it is one, or is empty."""
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.netloc:
        return None
    return f"{ENDPOINT_VARIABLE}={address} is no address: http://<host>:<port> or https://<host>"


def _meaning_of(words: str) -> str | None:
    if _METADATA_SERVICE in words:
        return f"{_KEYS} are not set, and this machine has no role"
    code = _code_of(words)
    if code is not None:
        return _MEANINGS.get(code)
    if _status_of(words) in ("301", "307"):
        return _MEANINGS["PermanentRedirect"]
    if is_permission(words):
        return f"{_KEYS}, or the machine's role, are wrong or may not do this"
    if "error sending request" in words:
        return f"no answer: see {ENDPOINT_VARIABLE}, AWS_REGION and the network"
    return None


def _code_of(text: str) -> str | None:
    found = _CODE.search(text)
    return found.group(1) if found else None


def _status_of(text: str) -> str | None:
    found = _STATUS.search(text)
    return found.group(1) if found else None
