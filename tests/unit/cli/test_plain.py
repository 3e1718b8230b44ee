"""What the command line makes of the client's errors."""

import pytest

from broker.cli.options import plain

NONE = "no broker of option 'kafka.bootstrap.servers' answers: broker a:1 "
PROTOCOL = "(option 'kafka.security.protocol' is PLAINTEXT: is it this listener's?)"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            f"{NONE}refuses connections",
            "no broker answers (start one with `kafka-ds broker`, or name one with --bootstrap-server): "
            "broker a:1 refuses connections",
        ),
        (
            f"{NONE}disconnected: it closed the connection {PROTOCOL}",
            "security.protocol is PLAINTEXT: is it this listener's? broker a:1 disconnected: it closed the connection",
        ),
        (
            f"{NONE}disconnected {PROTOCOL[:-1]} Or a certificate? 'kafka.ssl.keystore.location' is not given)",
            "security.protocol is PLAINTEXT: is it this listener's? Or a certificate? ssl.keystore.location is not "
            "given. broker a:1 disconnected",
        ),
        (
            "TOPIC_AUTHORIZATION_FAILED: topic payments",
            "TOPIC_AUTHORIZATION_FAILED: topic payments: an ACL is missing (the broker's log has the operation, "
            "kafka-acls adds one), or the broker is a read replica",
        ),
        (
            "CLUSTER_AUTHORIZATION_FAILED: this broker is read-only (lake.read.only=true)",
            "CLUSTER_AUTHORIZATION_FAILED: this broker is read-only (lake.read.only=true)",
        ),
    ],
)
def test_an_error_leads_with_its_cause_and_ends_with_the_remedy(problem: str, said: str) -> None:
    assert plain(problem) == said
