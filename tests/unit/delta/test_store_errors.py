"""What an object store's refusals are said to mean."""

import pytest

from kafka_ds.delta.store.s3_errors import (
    check_endpoint,
    explained,
    is_missing_bucket,
    is_permission,
)


def answer(status, code=""):
    """An error as the library raises it, with its source as the cause."""
    document = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>" if code else ""
    return (
        "Generic S3 error: Error performing PUT http://store/b/x in 5ms - "
        f"Server returned non-2xx status code: {status} Some Words: {document}\n\nDebug source:\nmuch"
    )


@pytest.mark.parametrize(
    ("status", "code", "named"),
    [
        (404, "NoSuchBucket", "lake.uri"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (400, "ExpiredToken", "AWS_SESSION_TOKEN"),
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "RequestTimeTooSkewed", "clock"),
        (403, "", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (401, "", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (301, "", "AWS_ENDPOINT_URL"),
        (503, "SlowDown", "throttles"),
    ],
)
def test_what_is_to_be_changed_is_named_first_and_the_stores_words_follow(status, code, named):
    said = explained(answer(status, code))
    meaning, _, words = said.partition(" (Generic S3 error")
    assert named in meaning
    assert str(status) in words and "\n" not in said and "much" not in said


def test_who_asks_is_told_from_what_is_asked_for():
    assert is_permission(answer(403, "AccessDenied")) and is_permission(answer(403))
    assert is_permission(answer(400, "ExpiredToken"))
    assert not is_permission(answer(503, "SlowDown"))
    assert is_missing_bucket(answer(404, "NoSuchBucket"))
    assert not is_missing_bucket(answer(404, "NoSuchKey")) and not is_missing_bucket(answer(404))


def test_a_machine_without_a_role_and_a_server_that_is_not_there():
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 4ms"
    assert explained(text).startswith("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
    text = "Error performing GET http://127.0.0.1:1/b/x - HTTP error: error sending request"
    assert explained(text).startswith("no answer: see AWS_ENDPOINT_URL")


def test_what_nobody_knows_is_passed_on():
    assert explained("something else\nmore") == "something else"
    assert explained(answer(400, "Unheard")).startswith("Generic S3 error")


@pytest.mark.parametrize(
    ("address", "fine"),
    [("", True), ("http://127.0.0.1:9000", True), ("https://s3.example", True)]
    + [("127.0.0.1:9000", False), ("nonsense", False), ("ftp://x", False), ("http://", False)],
)
def test_an_endpoint_is_an_address(address, fine):
    complaint = check_endpoint(address)
    assert complaint is None if fine else f"AWS_ENDPOINT_URL={address} is no address" in complaint
