"""`--acme`, the side of the CA (RFC 8555): account, orders, challenges, and when to renew (RFC 9773).

An order is continued from its address and its key, which are saved before anything else happens to it.

```text
 none ── saved, then ordered ──▶ pending ── challenge answered ──▶ ready ── finalized ──▶ processing ──▶ valid: installed
   ▲                                └───────────────┴───────────────────────────┴──▶ invalid, or not complete in time
   └────────────────────────────────────── back-off ◀────────────────────────────────────────┘
```
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any

import requests
from acme import challenges, client, errors, messages
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from josepy import b64, jwa, jwk

from .._version import __version__
from ..config import ServerConfig
from .acme import FAILED, WAITING
from .acme_store import Store

logger = logging.getLogger("towline.server")

ORDER_TIMEOUT = 300.0
"""Seconds in which an order must be complete; a CA validates within a minute."""
REQUEST_TIMEOUT = 30
LONGEST_POLL = 10.0
"""Most seconds between two looks at an order, whatever the CA says in Retry-After."""
NONCE_ATTEMPTS = 10
FIRST_BACKOFF, LAST_BACKOFF = 120.0, 12 * 3600.0
"""Seconds after a failure, three times as many after each further one. Let's Encrypt allows five failures an hour."""
LONGEST_RETRY_AFTER = 7 * 24 * 3600.0
LEAST_AGE = 3600.0
"""Seconds before a certificate is renewed at the earliest, or a third of a shorter lifetime: a CA whose renewal
information is always in the past gets no order each minute."""
LOOK_INTERVAL = 24 * 3600.0
"""Seconds between two looks at a certificate, where the CA has no renewal information or does not give it."""
ID_PE_ACME_IDENTIFIER = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")


class OrderError(Exception):
    """An order that has failed, with the reason that the CA gives."""


class Network(client.ClientNetwork):
    """Repeats a request whose nonce the CA refuses (RFC 8555 6.5), and notes Retry-After of a refusal."""

    retry_after = 0.0

    def post(self, *args: Any, **kwargs: Any) -> requests.Response:
        for attempt in range(NONCE_ATTEMPTS):
            try:
                return super().post(*args, **kwargs)
            except messages.Error as error:
                if error.code != "badNonce" or attempt == NONCE_ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _send_request(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super()._send_request(*args, **kwargs)
        self.retry_after = 0.0 if response.ok else seconds_of(response, 0.0)
        return response


def seconds_of(response: requests.Response, default: float) -> float:
    """Seconds of Retry-After, a number or a date."""
    if "Retry-After" not in response.headers:
        return default
    at = client.ClientV2.retry_after(response, int(default))
    return max(0.0, (at - datetime.datetime.now()).total_seconds())


class Authority:
    """The CA, with the account of the store. The directory is fetched at once, the account when there is an order."""

    def __init__(self, config: ServerConfig, store: Store) -> None:
        self._config, self._store = config, store
        account = store.record("account")
        if "key" not in account:
            account = {"key": pem(ec.generate_private_key(ec.SECP256R1()))}
            store.save("account", account)
        self._account = account
        self._key = jwk.JWKEC(key=private_key(account))
        verify: Any = config.acme_ca or True
        self.net = Network(
            self._key,
            alg=jwa.ES256,
            verify_ssl=verify,
            user_agent=f"towline/{__version__}",
            timeout=REQUEST_TIMEOUT,
        )
        self.client = client.ClientV2(client.ClientV2.get_directory(config.acme_url, self.net), self.net)

    def sign_in(self) -> None:
        """Find the account by its key, or register it (RFC 8555 7.3)."""
        if self.net.account is not None:
            return
        email = self._config.acme_email
        if self.client.external_account_required():
            raise OrderError("the CA requires an external account binding, which is not supported")
        new = messages.NewRegistration.from_data(email=email, terms_of_service_agreed=True)
        try:
            account = self.client.new_account(new)
            logger.info("ACME: a new account, %s", account.uri)
        except errors.ConflictError as found:
            body = messages.Registration.from_data(email=email)
            account = messages.RegistrationResource(uri=found.location, body=body)
            self.net.account = account
            if self._account.get("email") != email:
                self.client.update_registration(account)
        if self._account.get("email") != email:
            self._store.save("account", {**self._account, "email": email})

    def fetch(self, url: str, body: Any = None) -> requests.Response:
        """POST, or POST-as-GET without a body (RFC 8555 6.3)."""
        return self.net.post(url, body, new_nonce_url=self.client.directory["newNonce"])

    def key_authorization(self, token: str) -> str:
        """RFC 8555 8.1."""
        return f"{token}.{b64.b64encode(self._key.thumbprint()).decode()}"


class Order:
    """The order of one name, in the record of the name in the store; a new order is saved there before it is made."""

    def __init__(self, authority: Authority, store: Store, name: str, kinds: list[str]) -> None:
        self._authority, self._store, self._name, self._kinds = authority, store, name, kinds
        self._record = store.record(name)
        self._answered: set[str] = set()

    def complete(self, waiting: Callable[[], None]) -> bytes:
        """Begin or continue it, to the chain and the key. `waiting` is called while the CA works."""
        if "order" in self._record:
            logger.info("ACME: the order for %s goes on", self._name)
        else:
            self._begin()
        deadline = time.monotonic() + ORDER_TIMEOUT
        while time.monotonic() < deadline:
            response = self._authority.fetch(self._record["order"])
            order = response.json()
            status = order["status"]
            if status == "valid":
                return self._download(order["certificate"])
            if status == "invalid":
                raise OrderError(self._reason(order))
            if status == "pending":
                for url in order["authorizations"]:
                    self._prove(url)
            elif status == "ready":
                self._authority.fetch(order["finalize"], messages.CertificateRequest(csr=self._request()))
                continue
            waiting()
            time.sleep(min(max(seconds_of(response, 1.0), 0.5), LONGEST_POLL))
        raise OrderError(f"the order was not complete after {ORDER_TIMEOUT:.0f} s")

    def _begin(self) -> None:
        self._record["key"] = pem(ec.generate_private_key(ec.SECP256R1()))
        # A failure until there is an order: a server that is killed and started again makes none each time.
        self._store.save(self._name, failed(self._record, "it was interrupted"))
        identifier = messages.Identifier(typ=messages.IDENTIFIER_FQDN, value=self._name)
        new = messages.NewOrder(identifiers=[identifier])
        made = self._authority.fetch(self._authority.client.directory["newOrder"], new)
        self._record["order"] = made.headers["Location"]
        self._store.save(self._name, self._record)

    def _prove(self, url: str) -> None:
        """Answer a challenge of an authorization, once; publish the response as long as the CA may look for it."""
        authorization = self._authority.fetch(url).json()
        if authorization["status"] != "pending":
            return
        offered = {challenge["type"]: challenge for challenge in authorization["challenges"]}
        begun = [kind for kind in self._kinds if offered.get(kind, {}).get("status") == "processing"]
        # Another kind after each failure: only the CA knows which port it can reach.
        kinds = begun or [kind for kind in self._kinds if kind in offered]
        if not kinds:
            raise OrderError(
                f"the CA offers {', '.join(offered)}; the addresses allow {', '.join(self._kinds)}"
            )
        kind = kinds[self._record.get("failures", 0) % len(kinds)]
        challenge = offered[kind]
        proof = self._authority.key_authorization(challenge["token"])
        if kind == "http-01":
            self._store.write(f"{kind}/{challenge['token']}", proof.encode())
        else:
            self._store.write(f"{kind}/{self._name}.pem", challenge_certificate(self._name, proof))
        if url not in self._answered and not begun:
            self._answered.add(url)
            # The body is {} for each kind (RFC 8555 7.5.1); a class without fields would send none.
            self._authority.fetch(challenge["url"], challenges.HTTP01Response(key_authorization=proof))

    def _reason(self, order: dict[str, Any]) -> str:
        for url in order["authorizations"]:
            for challenge in self._authority.fetch(url).json()["challenges"]:
                if "error" in challenge:
                    return f"{challenge['type']}: {challenge['error'].get('detail')}"
        return str(order.get("error", {}).get("detail", "the CA gives no reason"))

    def _request(self) -> x509.CertificateSigningRequest:
        names = x509.SubjectAlternativeName([x509.DNSName(self._name)])
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return request.add_extension(names, critical=False).sign(private_key(self._record), hashes.SHA256())

    def _download(self, url: str) -> bytes:
        chain = self._authority.fetch(url).content
        leaf = x509.load_pem_x509_certificate(chain)
        if leaf.public_key() != private_key(self._record).public_key():
            raise OrderError("the certificate has another key than the order")
        return chain.rstrip() + b"\n" + str(self._record["key"]).encode()


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
        record, installed = self._store.record(name), self._store.read(f"{name}.pem")
        now, has_failed = time.time(), bool(record.get("failures"))
        due = 0.0 if has_failed and self._at_once else float(record.get("due", 0.0))
        if "order" not in record and (has_failed or installed is not None):
            if now < due:
                return due
            if installed is not None and not has_failed and now < record.get("renew_at", math.inf):
                return self._look(name, installed)
        try:
            authority = self._open()
            authority.sign_in()
            logger.info("ACME: ordering the certificate for %s", name)
            order = Order(authority, self._store, name, self._config.acme_challenges)
            content = order.complete(lambda: self._report(WAITING))
            self._store.write(f"{name}.pem", content)
        except BrokenPipeError:
            raise  # the supervisor has ended
        except Exception as error:
            return self._fail(name, record, error, installed)
        finally:
            self._store.clear_challenges()
        self._store.save(name, {"issued": time.time()})
        logger.info("ACME: a certificate for %s, valid until %s", name, leaf_of(content).not_valid_after_utc)
        return self._look(name, content)

    def _open(self) -> Authority:
        if self._authority is None:
            self._authority = Authority(self._config, self._store)
        return self._authority

    def _look(self, name: str, installed: bytes) -> float:
        """Choose the time of the renewal, by the renewal information of the CA if it has any; when to look again."""
        record, leaf = self._store.record(name), leaf_of(installed)
        begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
        lifetime = end - begin
        renew_at, look_at = begin + lifetime * random.uniform(0.65, 0.68), time.time() + LOOK_INTERVAL
        try:
            suggested, look = self._open().client.renewal_time(installed)
            if suggested is not None:
                renew_at, look_at = min(suggested.timestamp(), end - lifetime / 6), look.timestamp()
        except Exception as error:
            logger.warning("ACME: no renewal information for %s: %s", name, describe(error))
        renew_at = max(renew_at, record.get("issued", begin) + min(LEAST_AGE, lifetime / 3))
        due = float(min(renew_at, max(look_at, time.time() + 60)))
        self._store.save(name, {**record, "renew_at": renew_at, "due": due})
        return due

    def _fail(self, name: str, before: dict[str, Any], error: Exception, installed: bytes | None) -> float:
        record = failed(before, describe(error))
        if installed is not None:
            leaf = leaf_of(installed)
            lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
            record["due"] = min(record["due"], time.time() + lifetime.total_seconds() / 24)
        if self._authority is not None:
            wanted = min(self._authority.net.retry_after, LONGEST_RETRY_AFTER)
            record["due"] = max(record["due"], time.time() + wanted)
        self._store.save(name, record)
        self._report(FAILED)
        logger.error(
            "ACME: no certificate for %s: %s (attempt %d; the next in %.0f s)",
            name,
            record["error"],
            record["failures"],
            record["due"] - time.time(),
        )
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
    elif isinstance(error, errors.ARIError) and error.__cause__ is not None:
        text = str(error.__cause__)
    elif isinstance(error, requests.exceptions.SSLError):
        text += " (a private CA needs --acme-ca)"
    elif isinstance(error, requests.RequestException) and error.args:
        text = str(getattr(error.args[0], "reason", error))
    elif isinstance(error, errors.ClientError) and error.args:
        text = f"the CA has sent {error.args[0]}"
    text = "".join(c if c.isprintable() else " " for c in text) or type(error).__name__
    return text if len(text) <= 400 else f"{text[:400]}..."


def leaf_of(chain: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(chain)


def pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def private_key(record: dict[str, Any]) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(record["key"].encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def challenge_certificate(name: str, key_authorization: str) -> bytes:
    """The self-signed certificate by which tls-alpn-01 proves control of a name (RFC 8737 3), and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    now = datetime.datetime.now(datetime.timezone.utc)
    digest = hashlib.sha256(key_authorization.encode()).digest()
    proof = x509.UnrecognizedExtension(ID_PE_ACME_IDENTIFIER, b"\x04\x20" + digest)  # an OCTET STRING
    built = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=7)
    )
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    signed = (
        built.add_extension(names, critical=True)
        .add_extension(proof, critical=True)
        .sign(key, hashes.SHA256())
    )
    return signed.public_bytes(Encoding.PEM) + pem(key).encode()
