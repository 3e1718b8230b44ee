"""The console by a listener with TLS and users: login, ACLs, certificates, what other sites may not do."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from broker.security.authentication.scram_users import ScramCredential
from kafka_ds.security.scram import salted, server_key, stored_key
from tests.browser import PROGRAM, Browser
from tests.certificates import Identity, TokenIssuer
from tests.integration.secured_broker import LISTENERS, PASSWORD, SCRAM, SecuredBroker
from tests.processes import wait_until

BOB = "bob's secret"
SETTINGS = {
    "console.port": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice",
}
SAFE = {**SETTINGS, "console.listener.name": "SAFE_SASL"}


class BrowserReader:
    """A browser's side of it, without the browser."""

    def __init__(
        self, broker: SecuredBroker, identity: Identity | None = None, scheme: str = "https"
    ):
        assert broker.owner.console is not None
        self.root = f"{scheme}://localhost:{broker.owner.console.address[1]}"
        context = ssl.create_default_context(cafile=str(broker.authority.file))
        if identity is not None:
            context.load_cert_chain(identity.both_file)
        self.cookies = CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPCookieProcessor(self.cookies),
        )

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: object
    ) -> tuple[int, Any]:
        """Status and content."""
        url = f"{self.root}/{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})} if data else {}
        request = urllib.request.Request(url, data, given)
        try:
            with self._opener.open(request, timeout=60) as answer:
                content = answer.read()
                is_json = answer.headers["content-type"] == "application/json"
                return answer.status, json.loads(content) if is_json else content
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def log_in(self, user: str, password: str) -> int:
        """The status."""
        return self.ask("api/login", {"user": user, "password": password})[0]


def add_bob(broker: SecuredBroker) -> None:
    salt = os.urandom(16)
    password = salted(SCRAM, BOB, salt, 4096)
    stored, servers = stored_key(SCRAM, password), server_key(SCRAM, password)
    broker.node.security.scram_users.put("bob", SCRAM, ScramCredential(salt, stored, servers, 4096))


def admin_of(broker: SecuredBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap("PLAINTEXT")})


def fill(broker: SecuredBroker) -> None:
    admin = admin_of(broker)
    for future in admin.create_topics([NewTopic("orders", 1), NewTopic("secrets", 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap("PLAINTEXT")})
    producer.produce("orders", b"twelve")
    assert producer.flush(60) == 0


def allow(broker: SecuredBroker, who: str, what: AclOperation) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, f"User:{who}", "*", what,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = admin_of(broker)  # its requests end with it
    for future in admin.create_acls([binding]).values():
        future.result(60)


def test_nobody_sees_anything_before_a_login(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, SAFE) as broker:
        reader = BrowserReader(broker)
        status, page = reader.ask("")
        assert (status, b"kafka-ds" in page) == (200, True)
        needed = {"error": "log in", "mechanisms": ["PLAIN", SCRAM, "OAUTHBEARER"]}
        for view in ("cluster", "topics", "metrics", "settings", "groups", "records", "history"):
            assert reader.ask(f"api/{view}", topic="orders") == (401, needed)
        before = broker.owner.metrics.net.failed_authentications
        for user, password in (("alice", "wrong"), ("nobody", PASSWORD), ("", ""), ("a\0b", "c")):
            assert reader.log_in(user, password) == 403
        assert broker.owner.metrics.net.failed_authentications == before + 4
        assert not list(reader.cookies)
        assert reader.ask("api/login", ["alice"])[0] == 400
        assert reader.log_in("\ud800", "alone") == 400, "half a character"
        # A client without TLS is nobody's trouble.
        with pytest.raises(OSError):
            BrowserReader(broker, scheme="http").ask("")
        assert reader.log_in("alice", PASSWORD) == 200
        (cookie,) = reader.cookies
        assert cookie.secure
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
        assert reader.ask("api/cluster")[1]["user"] == "User:alice"
        kept = BrowserReader(broker)
        kept.cookies.set_cookie(cookie)
        assert kept.ask("api/cluster")[0] == 200
        assert reader.ask("api/logout", {})[0] == 200
        assert kept.ask("api/cluster")[0] == 401, "the session is over, not just the cookie"


def test_one_logs_in_by_the_token_of_a_client(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, SAFE) as broker:
        reader = BrowserReader(broker)
        for wrong in (
            broker.issuer.token("carol", seconds=-60),
            broker.issuer.token("carol", aud="elsewhere"),
            TokenIssuer(tmp_path / "others").token("carol"),
        ):
            told = reader.ask("api/login", {"token": wrong})
            assert told == (403, {"error": "The token is not accepted."})
        assert reader.ask("api/login", {"token": broker.issuer.token("carol")})[0] == 200
        assert reader.ask("api/cluster")[1]["user"] == "User:carol"


def add_commit(lake: Path) -> None:
    """What an engine commits that deletes a record by its key."""
    info = {"operation": "DELETE", "operationParameters": {"predicate": "key = 'carol@home'"}}
    add = {"path": "a", "size": 7, "partitionValues": {}, "modificationTime": 1, "dataChange": True}
    log = lake / "topics" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    actions = ({"commitInfo": info}, {"add": add})
    (log / f"{0:020d}.json").write_text("\n".join(json.dumps(each) for each in actions))


def test_each_view_has_the_acls_of_its_api(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, SAFE) as broker:
        add_bob(broker)
        fill(broker)
        add_commit(tmp_path / "lake")
        alice, bob = BrowserReader(broker), BrowserReader(broker)
        assert (alice.log_in("alice", PASSWORD), bob.log_in("bob", BOB)) == (200, 200)
        assert [each["name"] for each in alice.ask("api/topics")[1]] == ["orders", "secrets"]
        assert alice.ask("api/metrics")[0] == alice.ask("api/settings")[0] == 200
        (known,) = alice.ask("api/cluster")[1]["brokers"]
        assert len(known["endpoints"]) == len(LISTENERS)
        (segment,) = alice.ask("api/partition", topic="orders")[1]["segments"]
        assert segment["size_bytes"] > 0
        (commit,) = alice.ask("api/history", topic="orders")[1]
        assert (commit["bytes_added"], "carol@home" in str(commit)) == (7, True)

        assert bob.ask("api/topics") == (200, [])
        seen = bob.ask("api/cluster")[1]
        assert seen["topics"] == 0
        ((endpoint,),) = (each["endpoints"] for each in seen["brokers"])
        assert endpoint.startswith("SAFE_SASL://"), "no other listener is for this user"
        assert bob.ask("api/groups") == (200, [])
        for view in ("metrics", "settings", "topic", "partition", "records", "history"):
            status, told = bob.ask(f"api/{view}", topic="orders")
            assert (status, "ACLs do not let you" in told["error"]) == (403, True), view
        # Whether there is such a topic is not told either.
        assert bob.ask("api/topic", topic="none") == bob.ask("api/topic", topic="orders")

        allow(broker, "bob", AclOperation.DESCRIBE)
        wait_until("the ACL", lambda: bob.ask("api/topic", topic="orders")[0] == 200)
        (row,) = bob.ask("api/topics")[1]
        assert (row["name"], row["local_bytes"]) == ("orders", None)
        found = bob.ask("api/topic", topic="orders")[1]
        assert (found["partitions"][0]["log_end_offset"], found["settings"]) == (1, None)
        (segment,) = bob.ask("api/partition", topic="orders")[1]["segments"]
        assert (segment["next_offset"], segment["size_bytes"]) == (1, None)
        (commit,) = bob.ask("api/history", topic="orders")[1]
        assert (commit["operation"], commit["bytes_added"]) == ("DELETE", None)
        assert commit["parameters"] is None, "a predicate may hold what records hold"
        assert bob.ask("api/records", topic="orders")[0] == 403
        allow(broker, "bob", AclOperation.READ)
        wait_until("the ACL", lambda: bob.ask("api/records", topic="orders")[0] == 200)
        (record,) = bob.ask("api/records", topic="orders")[1]["records"]
        assert record["value"]["text"] == "twelve"
        assert "carol@home" in str(bob.ask("api/history", topic="orders"))
        assert bob.ask("api/topic", topic="secrets")[0] == 403


def test_other_sites_log_nobody_in_or_out(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, SAFE) as broker:
        reader = BrowserReader(broker)
        login = {"user": "alice", "password": PASSWORD}
        for headers in ({"Origin": "https://evil.example"}, {"Content-Type": "text/plain"}):
            assert reader.ask("api/login", login, headers)[0] == 403
        assert reader.ask("api/login", login, {"Origin": reader.root})[0] == 200
        assert reader.ask("api/logout", {}, {"Origin": "https://evil.example"})[0] == 403
        assert reader.ask("api/cluster")[0] == 200
        assert reader.ask("api/topics", {})[0] == 405


def test_a_certificate_is_a_user_too(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, {**SETTINGS, "console.listener.name": "MUTUAL"}) as broker:
        fill(broker)
        identity = broker.authority.issue("bob", subject={"OU": "clients", "CN": "Bob"})
        bob = BrowserReader(broker, identity)
        assert bob.ask("api/cluster")[1]["user"] == "User:bob"
        assert bob.ask("api/topic", topic="orders")[0] == 403
        allow(broker, "bob", AclOperation.DESCRIBE)
        wait_until("the ACL", lambda: bob.ask("api/topic", topic="orders")[0] == 200)
        assert bob.ask("api/login", {"user": "alice", "password": PASSWORD})[0] == 405
        with pytest.raises(OSError):
            BrowserReader(broker).ask("api/cluster")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's chromium")
def test_one_logs_in_looks_around_and_out(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, SAFE) as broker, Browser(tmp_path / "profile") as browser:
        add_bob(broker)
        fill(broker)
        allow(broker, "bob", AclOperation.DESCRIBE)
        browser.open(BrowserReader(broker).root)
        browser.until("With the name and password or the token of a Kafka client")
        browser.screenshot(tmp_path / "login.png")
        browser.type("bob")
        browser.click("input[type=password]")
        browser.type("wrong")
        browser.click("button", "Log in")
        browser.until("The name or the password is wrong.")
        browser.click("input[type=password]")
        browser.type(BOB)
        browser.click("button", "Log in")
        browser.until("ACLs do not let you see this broker's metrics.")
        assert "User:bob" in browser.text()
        browser.click("nav a", "Topics")
        browser.until("orders")
        assert "secrets" not in browser.text()
        browser.click("a", "orders")
        browser.until("ACLs do not let you see its settings.")
        browser.click("nav a", "Settings")
        browser.until("ACLs do not let you see this (CLUSTER_AUTHORIZATION_FAILED)")
        browser.screenshot(tmp_path / "refused.png")
        browser.click("#logout")
        browser.until("With the name and password or the token of a Kafka client")
        browser.click("input[name=token]")
        browser.type(broker.issuer.token("carol"))
        browser.click("button", "Log in")
        browser.until("User:carol")
        browser.click("#logout")
        browser.until("With the name and password or the token of a Kafka client")
        browser.click("input[name=user]")
        browser.type("alice")
        browser.click("input[type=password]")
        browser.type(PASSWORD)
        browser.click("button", "Log in")
        browser.click("nav a", "Settings")
        browser.until("super.users")
        assert browser.errors == []
