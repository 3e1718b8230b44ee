"""Error codes and the exceptions that carry them."""

from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame, UnknownApiKey


def test_codes_have_kafkas_numbers() -> None:
    assert ErrorCode(-1) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.NONE == 0 and ErrorCode.UNSUPPORTED_VERSION == 35
    assert sorted(ErrorCode) == list(range(-1, len(ErrorCode) - 1))
    assert ErrorCode(9_999) is ErrorCode.UNKNOWN_SERVER_ERROR, "what a newer peer may say"


def test_what_a_client_may_try_again() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.MESSAGE_TOO_LARGE.retriable


def test_an_error_says_its_name() -> None:
    assert str(KafkaError(ErrorCode.INVALID_CONFIG)) == "INVALID_CONFIG"
    error = KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms is no number")
    assert str(error) == "INVALID_CONFIG: retention.ms is no number"
    assert (error.code, error.message) == (40, "retention.ms is no number")


def test_an_unknown_api_key_is_a_malformed_frame() -> None:
    assert issubclass(UnknownApiKey, MalformedFrame)
