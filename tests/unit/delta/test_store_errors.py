"""What an object store's refusals are said to mean."""

import pytest

from kafka_ds.delta.store.clouds import bucket_at
from kafka_ds.delta.store.refusals import check_endpoint

S3, GCS, AZURE = (
    bucket_at(each).refusals for each in ("s3://b", "gs://b", "abfss://c@a.dfs.core.windows.net")
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
        (404, "NoSuchBucket", "the lake's address"),
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
    said = S3.explained(answer(status, code))
    meaning, _, words = said.partition(" (Generic S3 error")
    assert named in meaning
    assert str(status) in words and "\n" not in said and "much" not in said


@pytest.mark.parametrize(
    ("store", "status", "code", "named"),
    [
        (GCS, 404, "NoSuchBucket", "the lake's address"),
        (GCS, 403, "AccessDenied", "storage.objects.create"),
        (GCS, 401, "", "GOOGLE_APPLICATION_CREDENTIALS"),
        (AZURE, 404, "ContainerNotFound", "the lake's address"),
        (AZURE, 403, "AuthenticationFailed", "AZURE_STORAGE_ACCOUNT_KEY"),
        (AZURE, 403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
        (AZURE, 403, "", "AZURE_STORAGE_ACCOUNT_KEY"),
        (AZURE, 503, "ServerBusy", "throttles"),
    ],
)
def test_each_store_has_its_own_codes_and_variables(store, status, code, named):
    said = store.explained(answer(status, code))
    assert named in said.partition(" (Generic S3 error")[0] and "AWS" not in said
    assert store.is_permission(answer(status, code)) == (status in (401, 403))


def test_who_asks_is_told_from_what_is_asked_for():
    assert S3.is_permission(answer(403, "AccessDenied")) and S3.is_permission(answer(403))
    assert S3.is_permission(answer(400, "ExpiredToken"))
    assert not S3.is_permission(answer(503, "SlowDown"))
    assert S3.is_missing_bucket(answer(404, "NoSuchBucket"))
    assert not any(S3.is_missing_bucket(answer(404, each)) for each in ("NoSuchKey", ""))
    assert AZURE.is_missing_bucket(answer(404, "ContainerNotFound"))
    assert not AZURE.is_missing_bucket(answer(404, "BlobNotFound"))


def test_a_conflict_that_leaves_open_whether_the_object_is_there_is_no_lost_race():
    assert S3.is_undecided(answer(409, "ConditionalRequestConflict"))
    assert AZURE.is_undecided(answer(409, "ContainerBeingDeleted"))
    for store, code in ((S3, "PreconditionFailed"), (GCS, ""), (AZURE, "BlobAlreadyExists")):
        assert not store.is_undecided(answer(412, code))


def test_a_machine_without_a_role_and_a_server_that_is_not_there():
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 4ms"
    assert S3.explained(text).startswith("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
    assert "this machine has no managed identity" in AZURE.explained(text)
    text = "error performing token request: GET http://metadata.google.internal/computeMetadata/v1/"
    assert "this machine has no service account" in GCS.explained(text)
    text = "Error performing GET http://127.0.0.1:1/b/x - HTTP error: error sending request"
    assert S3.explained(text).startswith("no answer: see AWS_ENDPOINT_URL")
    assert AZURE.explained(text).startswith("no answer: see the account's name")


def test_what_nobody_knows_is_passed_on():
    assert S3.explained("something\n else\n\nmore") == "something else"
    assert S3.explained(answer(400, "Unheard")).startswith("Generic S3 error")


@pytest.mark.parametrize(
    ("address", "fine"),
    [("", True), ("http://127.0.0.1:9000", True), ("https://s3.example", True)]
    + [("127.0.0.1:9000", False), ("nonsense", False), ("ftp://x", False), ("http://", False)],
)
def test_an_endpoint_is_an_address(address, fine):
    complaint = check_endpoint("AWS_ENDPOINT_URL", address)
    assert complaint is None if fine else f"AWS_ENDPOINT_URL={address} is no address" in complaint
