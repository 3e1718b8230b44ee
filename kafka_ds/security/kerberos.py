"""Shell: Kerberos by the system's library, through the package `gssapi` (the extra `kerberos`).

Everything here may read files, and an initiator asks the KDC: call it in a thread. The library reads KRB5_CONFIG or
/etc/krb5.conf. It reads a keytab for each client, so that new keys need no restart. A login by keytab keeps its tickets
in memory, and gets new ones when a login finds that half of their life is over.
"""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

from kafka_ds.security.gssapi_mechanism import (
    GssapiClient,
    KerberosFailed,
    KerberosLogin,
    SecurityContext,
)

EXTRA = "kafka-ds[kerberos]"
# CLIENT_NOT_YET_VALID, TICKET_NOT_YET_VALID and REPLAY of RFC 4120, from the first code of libkrb5's errors on.
_FIRST_CODE = -1765328384
_MASK = 0xFFFFFFFF
_TRANSIENT = frozenset(_FIRST_CODE + code & _MASK for code in (21, 33, 34))


class KerberosUnavailable(Exception):
    """The package or the system's library is missing."""


def library() -> ModuleType:
    """The package `gssapi`. Raises KerberosUnavailable: it is not installed, or finds no libgssapi_krb5."""
    try:
        import gssapi
    except (ImportError, OSError) as error:
        raise KerberosUnavailable(
            f"GSSAPI needs the package gssapi: pip install '{EXTRA}' ({error})"
        ) from None
    module: ModuleType = gssapi
    return module


def default_realm() -> str:
    """The system's default realm; empty if it has none. Raises KerberosUnavailable."""
    gssapi = library()
    try:
        whole = gssapi.Name("any", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(whole).rpartition("@")[2]


class KerberosAcceptor:
    """The keys of a service, by which it recognises its clients."""

    def __init__(self, login: KerberosLogin) -> None:
        """Raises KerberosUnavailable, KerberosFailed: the keytab cannot be read, or has no key of the principal."""
        self._gssapi = library()
        try:
            self._credentials = self._gssapi.Credentials(
                name=self._gssapi.Name(login.principal, self._gssapi.NameType.kerberos_principal),
                usage="accept",
                # And no other mechanism, which could be chosen by a client (RFC 4752, section 3).
                mechs=[self._gssapi.MechType.kerberos],
                store={"keytab": login.keytab} if login.keytab else None,
            )
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(error) from None

    def context(self) -> SecurityContext:
        """The service's side of a new context."""
        context = self._gssapi.SecurityContext(creds=self._credentials, usage="accept")
        return _LibraryContext(self._gssapi, context)


def initiate(login: KerberosLogin, service: str, host: str) -> GssapiClient:
    """The client's side of an exchange with `service` at `host`; asks the KDC for the tickets that it does not have.

    Raises KerberosUnavailable, KerberosFailed.
    """
    gssapi = library()
    store: dict[str, str] = {}
    if login.uses_ticket_cache and login.ticket_cache:
        store["ccache"] = login.ticket_cache
    elif not login.uses_ticket_cache:
        if login.keytab:
            store["client_keytab"] = login.keytab
        who = hashlib.sha256(f"{login.principal}\0{login.keytab}".encode()).hexdigest()
        store["ccache"] = f"MEMORY:kafka-ds-{who}"
    try:
        name = None
        if login.principal:
            name = gssapi.Name(login.principal, gssapi.NameType.kerberos_principal)
        kerberos = gssapi.MechType.kerberos
        credentials = gssapi.Credentials(
            name=name, usage="initiate", mechs=[kerberos], store=store or None
        )
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        made = gssapi.SecurityContext(
            name=target, creds=credentials, usage="initiate", mech=kerberos
        )
    except gssapi.exceptions.GSSError as error:
        raise _failure(error) from None
    context = _LibraryContext(gssapi, made)
    return GssapiClient(context, context.step(None))


class _LibraryContext:
    """A context of the library; its errors become KerberosFailed."""

    def __init__(self, gssapi: ModuleType, context: Any) -> None:
        self._error = gssapi.exceptions.GSSError
        self._context = context
        # A step that fails raises, as in Kafka's Java; else it would return an error's token, and any later call raise.
        context.__DEFER_STEP_ERRORS__ = False

    def is_complete(self) -> bool:
        return bool(self._context.complete)

    def initiator(self) -> str:
        try:
            return str(self._context.initiator_name)
        except UnicodeDecodeError:
            raise KerberosFailed("the principal is not UTF-8") from None

    def step(self, token: bytes | None) -> bytes:
        try:
            return bytes(self._context.step(token) or b"")
        except self._error as error:
            raise _failure(error) from None

    def wrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.wrap(message, False).message)
        except self._error as error:
            raise _failure(error) from None

    def unwrap(self, token: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(token).message)
        except self._error as error:
            raise _failure(error) from None


def _failure(error: Any) -> KerberosFailed:
    """The library's error: the mechanism's own text, which says most, or where it has none the general one."""
    try:
        texts = error.get_all_statuses(error.min_code, False) if error.min_code else []
        texts = [text for text in texts if text != "Success"]
        text = "; ".join(texts or error.get_all_statuses(error.maj_code, True))
    except UnicodeDecodeError:
        # Texts name principals, and of a forged ticket these are any bytes.
        text = f"error {error.maj_code}, {error.min_code}"
    return KerberosFailed(text, is_transient=error.min_code & _MASK in _TRANSIENT)
