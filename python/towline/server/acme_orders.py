"""`--acme`, the side of the CA (RFC 8555): account, orders, challenges, and when to renew (RFC 9773).

An order is saved before it is made, so another run continues it.

```text
 none ──▶ pending ── challenge answered ──▶ ready ── finalized ──▶ processing ──▶ valid: installed
   ▲         └───────────────┴──────────────────┴──▶ invalid, or not complete in time
   └───────────────────── back-off ◀────────────────────────┘
```
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import math
import random
import re
import time
from collections.abc import Callable
from typing import Any

import requests
from acme import challenges, client, crypto_util, errors, messages
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec
from josepy import b64, jwa, jwk

from .._version import __version__
from ..config import ServerConfig
from .acme import FAILED, WAITING
from .acme_store import Store

logger = logging.getLogger("towline.server")

ORDER_TIMEOUT = 300.0
"""Seconds in which an order must be complete; a CA validates within a minute."""
REQUEST_TIMEOUT = 30
NONCE_ATTEMPTS = 10
FIRST_BACKOFF, LAST_BACKOFF = 120.0, 12 * 3600.0
"""Seconds after a failure, three times as many after each further one. Let's Encrypt allows five failures an hour."""
LONGEST_RETRY_AFTER = 7 * 24 * 3600.0
LEAST_AGE = 3600.0
"""Seconds before a renewal at the earliest, or a third of a shorter lifetime, whatever renewal information says."""
LOOK_INTERVAL = 24 * 3600.0
"""Seconds between two looks at a certificate, if the CA gives no renewal information."""
ID_PE_ACME_IDENTIFIER = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")


class OrderError(Exception):
    """An order that has failed, with the reason that the CA gives."""


class Network(client.ClientNetwork):
    """Repeats a request whose nonce the CA refuses (RFC 8555 6.5), and notes Retry-After of a refusal.

    `report` raises BrokenPipeError once the supervisor has ended.
    """

    report: Callable[[str], None]
    retry_after = 0.0

    def post(self, *args: Any, **kwargs: Any) -> requests.Response:
        for _ in range(NONCE_ATTEMPTS - 1):
            try:
                return super().post(*args, **kwargs)
            except messages.Error as error:
                if error.code != "badNonce":
                    raise
        return super().post(*args, **kwargs)

    def _send_request(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.report(WAITING)
        response = super()._send_request(*args, **kwargs)
        at = client.ClientV2.retry_after(response, 0)
        self.retry_after = 0.0 if response.ok else (at - datetime.datetime.now()).total_seconds()
        return response


class Authority:
    """The CA, with the account of the store."""

    def __init__(self, config: ServerConfig, store: Store, report: Callable[[str], None]) -> None:
        account = store.record("account")
        if "key" not in account:
            account = {"key": new_key()}
            store.save("account", account)
        self._key = jwk.JWKEC(key=private_key(account))
        verify: Any = config.acme_ca or True
        agent = f"towline/{__version__}"
        self.net = Network(self._key, None, jwa.ES256, verify, user_agent=agent, timeout=REQUEST_TIMEOUT)
        self.net.report = report
        self.client = client.ClientV2(client.ClientV2.get_directory(config.acme_url, self.net), self.net)
        self._email = config.acme_email

    def sign_in(self) -> None:
        """Find the account by its key, or register it (RFC 8555 7.3)."""
        if self.net.account is not None:
            return
        if self.client.external_account_required():
            raise OrderError("the CA requires an external account binding, which is not supported")
        new = messages.NewRegistration.from_data(email=self._email, terms_of_service_agreed=True)
        try:
            logger.info("ACME: a new account, %s", self.client.new_account(new).uri)
        except errors.ConflictError as found:
            body = messages.Registration.from_data(email=self._email)
            self.net.account = messages.RegistrationResource(uri=found.location, body=body)
            if self._email:
                self.client.update_registration(self.net.account)

    def fetch(self, url: str, body: Any = None) -> requests.Response:
        """POST, or POST-as-GET without a body (RFC 8555 6.3)."""
        return self.net.post(url, body, new_nonce_url=self.client.directory["newNonce"])

    def key_authorization(self, token: str) -> str:
        """RFC 8555 8.1."""
        return f"{token}.{b64.b64encode(self._key.thumbprint()).decode()}"


class Order:
    """The order of one name, in its record in the store. `kinds`: the challenges that the server can answer."""

    def __init__(self, authority: Authority, store: Store, name: str, kinds: list[str]) -> None:
        self._authority, self._store, self._name, self._kinds = authority, store, name, kinds
        self._record = store.record(name)

    def complete(self) -> bytes:
        """Begin or continue it, to the chain and the key."""
        if "order" not in self._record:
            self._begin()
        url, key = str(self._record["order"]), str(self._record["key"]).encode()
        logger.info("ACME: the order for %s is %s", self._name, url)
        order = messages.Order.from_json(self._authority.fetch(url).json())
        for authorization in order.authorizations:
            self._prove(authorization)
        made = messages.OrderResource(
            uri=url, body=order, csr_pem=crypto_util.make_csr(key, domains=[self._name])
        )
        deadline = datetime.datetime.now() + datetime.timedelta(seconds=ORDER_TIMEOUT)
        return self._authority.client.poll_and_finalize(made, deadline).fullchain_pem.encode() + key

    def _begin(self) -> None:
        self._record["key"] = new_key()
        # A failure until there is an order: a server that is killed and started again makes none each time.
        self._store.save(self._name, failed(self._record, "it was interrupted"))
        identifier = messages.Identifier(typ=messages.IDENTIFIER_FQDN, value=self._name)
        url, new = self._authority.client.directory["newOrder"], messages.NewOrder(identifiers=[identifier])
        self._record["order"] = self._authority.fetch(url, new).headers["Location"]
        self._store.save(self._name, self._record)

    def _prove(self, url: str) -> None:
        """Publish the response to a challenge of an authorization, and tell the CA unless it looks for it already."""
        authorization = self._authority.fetch(url).json()
        if authorization["status"] != "pending":
            return
        offered = {challenge["type"]: challenge for challenge in authorization["challenges"]}
        begun = [kind for kind in self._kinds if offered.get(kind, {}).get("status") == "processing"]
        kinds = begun or [kind for kind in self._kinds if kind in offered]
        if not kinds:
            raise OrderError(f"the CA offers {[*offered]}, and the addresses can answer {self._kinds}")
        # Another kind after each failure: only the CA knows which port it can reach.
        challenge = offered[kinds[self._record.get("failures", 0) % len(kinds)]]
        if not re.fullmatch(r"[\w-]+", challenge["token"], re.ASCII):  # a file gets this name
            raise OrderError("the token of the challenge is not base64url (RFC 8555 8)")
        proof = self._authority.key_authorization(challenge["token"])
        if challenge["type"] == "http-01":
            self._store.write(f"http-01/{challenge['token']}", proof.encode())
        else:
            self._store.write(f"tls-alpn-01/{self._name}.pem", challenge_certificate(self._name, proof))
        if not begun:
            # The body is {} for each kind (RFC 8555 7.5.1); a class without fields would send none.
            self._authority.fetch(challenge["url"], challenges.HTTP01Response(key_authorization=proof))


class Run:
    """One run of the process: what is due, one name after the other, while no other process orders.

    `at_once`: also what has failed, before its back-off ends.
    """

    def __init__(self, config: ServerConfig, report: Callable[[str], None], *, at_once: bool) -> None:
        self._config, self._report, self._at_once = config, report, at_once
        self._store = Store(config.acme_folder or "")
        self._authority: Authority | None = None

    def get_due(self) -> float:
        """Order what is due; the time, in seconds since 1970, at which something is due again."""
        with self._store.lock():
            return min(self._get(name) for name in self._config.acme_names)

    def _get(self, name: str) -> float:
        record, installed = self._store.record(name), self._installed(name)
        has_failed = "failures" in record
        if "order" not in record and (has_failed or installed is not None):
            if time.time() < record.get("due", 0.0) and not (has_failed and self._at_once):
                if has_failed:
                    wait = f"{record['due'] - time.time():.0f} s ({record['error']}); SIGHUP does not wait"
                    logger.warning("ACME: %s is tried again in %s", name, wait)
                return float(record["due"])
            if installed is not None and not has_failed and time.time() < record.get("renew_at", math.inf):
                return self._look(name, installed)
        try:
            authority = self._open()
            authority.sign_in()
            content = Order(authority, self._store, name, self._config.acme_challenges).complete()
            self._store.write(f"{name}.pem", content)
        except BrokenPipeError:
            raise  # the supervisor has ended
        except Exception as error:
            return self._fail(name, record, error, installed)
        finally:
            self._store.clear_challenges()
        self._store.save(name, {"issued": time.time()})
        leaf = x509.load_pem_x509_certificate(content)
        logger.info("ACME: a certificate for %s, valid until %s", name, leaf.not_valid_after_utc)
        return self._look(name, leaf)

    def _installed(self, name: str) -> x509.Certificate | None:
        """The certificate of a name; a damaged one is as good as none."""
        try:
            return x509.load_pem_x509_certificate(self._store.read(f"{name}.pem") or b"")
        except ValueError:
            return None

    def _open(self) -> Authority:
        if self._authority is None:
            self._authority = Authority(self._config, self._store, self._report)
        return self._authority

    def _look(self, name: str, leaf: x509.Certificate) -> float:
        """Choose the time of the renewal, by the renewal information of the CA if it has any; when to look again."""
        record, now = self._store.record(name), time.time()
        begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
        renew_at, look_at = begin + (end - begin) * random.uniform(0.65, 0.68), now + LOOK_INTERVAL
        try:
            suggested, look = self._open().client.renewal_time(leaf.public_bytes(keys.Encoding.PEM))
            if suggested is not None:
                renew_at = min(suggested.timestamp(), end - (end - begin) / 6)
                look_at = max(look.timestamp(), now + 60)
        except BrokenPipeError:
            raise
        except Exception as error:
            logger.warning("ACME: no renewal information for %s: %s", name, describe(error))
        issued = record.get("issued", begin)
        renew_at = max(renew_at, issued + min(LEAST_AGE, (end - begin) / 3))
        due = float(min(renew_at, look_at))
        self._store.save(name, {"issued": issued, "renew_at": renew_at, "due": due})
        return due

    def _fail(
        self, name: str, before: dict[str, Any], error: Exception, leaf: x509.Certificate | None
    ) -> float:
        record, now = failed(before, describe(error)), time.time()
        if leaf is not None:
            lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
            record["due"] = min(record["due"], now + lifetime.total_seconds() / 24)
        if self._authority is not None:
            wanted = min(self._authority.net.retry_after, LONGEST_RETRY_AFTER)
            record["due"] = max(record["due"], now + wanted)
        self._store.save(name, record)
        self._report(FAILED)
        after = f"attempt {record['failures']}; the next in {record['due'] - now:.0f} s"
        logger.error("ACME: no certificate for %s: %s (%s)", name, record["error"], after)
        return float(record["due"])


def failed(record: dict[str, Any], why: str) -> dict[str, Any]:
    """The record of a name after a failure: without the order, and with the end of the back-off."""
    failures = record.get("failures", 0) + 1
    delay = min(FIRST_BACKOFF * 3.0 ** min(failures - 1, 20), LAST_BACKOFF) * random.uniform(1, 1.1)
    return {"failures": failures, "error": why, "due": time.time() + delay}


def describe(error: Exception) -> str:
    """The reason in one line."""
    text = str(error)
    if isinstance(error, messages.Error):
        details = (part.detail for part in error.subproblems or ())
        text = "; ".join(str(part) for part in (error.code, error.detail, *details) if part)
    elif isinstance(error, errors.ValidationError):
        tried = (challenge for failed in error.failed_authzrs for challenge in failed.body.challenges)
        parts = (f"{part.to_json()['type']}: {describe(part.error)}" for part in tried if part.error)
        text = "; ".join(parts)
    elif isinstance(error, errors.TimeoutError):
        text = f"the order was not complete after {ORDER_TIMEOUT:.0f} s"
    elif isinstance(error, errors.IssuanceError):
        text = describe(error.error)
    elif isinstance(error, requests.exceptions.SSLError):
        text += " (a private CA needs --acme-ca)"
    elif isinstance(error, requests.RequestException) and error.args:
        text = str(getattr(error.args[0], "reason", error))
    elif isinstance(error, errors.ClientError) and error.args:
        text = str(error.__cause__ or error.args[0])
    return "".join(c if c.isprintable() else " " for c in text)[:400] or type(error).__name__


def new_key() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    form = (keys.Encoding.PEM, keys.PrivateFormat.PKCS8, keys.NoEncryption())
    return key.private_bytes(*form).decode()


def private_key(record: dict[str, Any]) -> Any:
    return keys.load_pem_private_key(record["key"].encode(), None)


def challenge_certificate(name: str, key_authorization: str) -> bytes:
    """The self-signed certificate by which tls-alpn-01 proves control of a name (RFC 8737 3), and its key."""
    pem, nobody = new_key(), x509.Name([])
    key, now = private_key({"key": pem}), datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    digest = hashlib.sha256(key_authorization.encode()).digest()
    proof = x509.UnrecognizedExtension(ID_PE_ACME_IDENTIFIER, b"\x04\x20" + digest)  # an OCTET STRING
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    begin, end, number = now - day, now + day, x509.random_serial_number()
    built = x509.CertificateBuilder(nobody, nobody, key.public_key(), number, begin, end)
    built = built.add_extension(names, critical=True).add_extension(proof, critical=True)
    return built.sign(key, hashes.SHA256()).public_bytes(keys.Encoding.PEM) + pem.encode()
