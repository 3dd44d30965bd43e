"""Whether a server lets a site's node in, and if not, why: its clock, its key, or an earlier node that counts as alive.

Flower's own node (1.41) says the same of a key that nobody has registered and of a node that still counts as alive, and
of a clock that is wrong it says nothing at all: it ends as if it had been asked to. So a site asks before its node
starts, by the requests that the node would send. A server looks at them in an order that tells the cases apart: first
at the clock, then at the key, then at the interval between signs of life, and last at whether the node is there.
"""

import base64
import email.utils
import hashlib
import re
import ssl
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedbayes.errors import ClientDataError, FederatedError

_NO_INTERVAL, _INTERVAL = 0.0, 30.0  # seconds between signs of life: one that every server refuses, and Flower's own
_PATIENCE = 20.0  # seconds for an answer
_AHEAD, _BEHIND = 5, 305  # seconds by which a node's clock may be off (Flower, `SYSTEM_TIME_TOLERANCE` and the other)
_REFUSED_INTERVAL, _REFUSED_NODE = 2003, 2004  # Flower's codes of errors, `ApiErrorCode`
_UNAUTHORIZED = 401


class Admission(NamedTuple):
    """A node that asks to be let in.

    Attributes
    ----------
    site
        Its site's name.
    server
        ``host:port``, as for ``flower-supernode --superlink``.
    certificate
        File of the authority that the server's certificate is signed by.
    key
        File of the node's private key.
    """

    site: str
    server: str
    certificate: Path
    key: Path

    def ask(self) -> None:
        """Ask the server; it knows of nothing afterwards.

        Raises
        ------
        ClientDataError
            A file is not there, or holds something else.
        FederatedError
            The node would not be let in; or nobody answers who could say.
        """
        private = _private_key(self.key)
        try:
            known = _client(self, private)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ClientDataError(
                f"The server's authority, '{self.certificate}', can't be read ({_reason(error)}). Get `ca.crt` from "
                "whoever runs the server, and put it there."
            ) from None
        with known as client:
            try:
                self._ask(client, private.public_key())
            except httpx.TransportError as error:
                raise FederatedError(self._unreached(error)) from None

    def _ask(self, client: Any, public: ec.EllipticCurvePublicKey) -> None:
        told = _activate(client, public, _NO_INTERVAL)
        if told.status == _UNAUTHORIZED:
            raise FederatedError(self._wrong_clock(told))
        if told.code == _REFUSED_NODE:
            raise FederatedError(self._unknown_key(public))
        if told.code != _REFUSED_INTERVAL:
            raise FederatedError(self._no_server(told))
        if _activate(client, public, _INTERVAL).code == _REFUSED_NODE:
            raise FederatedError(self._still_alive())

    def _wrong_clock(self, told: "_Answer") -> str:
        here, there = _now(), told.date
        off = 0 if there is None else round((here - there).total_seconds())
        if there is None or -_BEHIND < off < _AHEAD:
            return (
                f"The server at {self.server} can't check the signature of the node of site '{self.site}' "
                f"(status {told.status}). Its clock is right; install the same version of Flower here as at the server."
            )
        side, much = ("ahead of", off) if off > 0 else ("behind", -off)
        return (
            f"The clock of this machine is {much:,} seconds {side} the server's, and so the server at {self.server} "
            f"refuses the node of site '{self.site}': here it is {here:%Y-%m-%d %H:%M:%S} UTC, there "
            f"{there:%Y-%m-%d %H:%M:%S} UTC. A node's clock may be {_AHEAD} seconds ahead or 300 seconds behind. Set "
            "the one that is wrong, for instance by `timedatectl set-ntp true`."
        )

    def _unknown_key(self, public: ec.EllipticCurvePublicKey) -> str:
        return (
            f"The server at {self.server} does not know the key of site '{self.site}': '{self.key}', with the "
            f"fingerprint {_fingerprint(public)}. At the server, register its public half under the site's name: "
            f"`flwr supernode register certificates/{self.site}.pub server --name {self.site}`. If that was done, it "
            "was another key: compare the fingerprints, `ssh-keygen -lf FILE`."
        )

    def _still_alive(self) -> str:
        return (
            f"The server at {self.server} still counts an earlier node of site '{self.site}' as alive, and lets no "
            "second one in with the same key. A node that was killed counts as alive for up to a minute: start this "
            "one again until it is let in, as systemd does with `Restart=always`. If that takes longer than two "
            "minutes, another node runs with this key: stop it."
        )

    def _unreached(self, error: httpx.TransportError) -> str:
        if _is_about_certificates(error):
            return (
                f"The server at {self.server} has a certificate that '{self.certificate}' does not vouch for: "
                f"{_reason(error)}. Get `ca.crt` from whoever runs the server, call the server by the name for which "
                f"its certificate was made, and see whether this machine's clock is right: here it is "
                f"{_now():%Y-%m-%d %H:%M:%S} UTC."
            )
        return (
            f"Nobody answers at {self.server}, where the node of site '{self.site}' looks for its server: "
            f"{_reason(error)}. See whether the server runs, and whether this machine may call it."
        )

    def _no_server(self, told: "_Answer") -> str:
        return (
            f"What answers at {self.server} is not the server of site '{self.site}', or one of another version of "
            f"Flower (status {told.status}, Flower's code {told.code or 'none'}). Give the host and port that the "
            "nodes call, and install the same version of Flower everywhere."
        )


class _Answer(NamedTuple):
    """What a server has said: status, Flower's code of an error or 0, and its clock."""

    status: int
    code: int
    date: datetime | None


def _activate(client: Any, public: ec.EllipticCurvePublicKey, interval: float) -> _Answer:
    """Ask to be let in, and leave at once."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest

    request = ActivateNodeRequest(public_key=_as_pem(public), heartbeat_interval=interval)
    try:
        node = client.ActivateNode(request).node_id
    except httpx.HTTPStatusError as error:
        return _read(error.response)
    client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    return _Answer(200, 0, None)


def _read(response: httpx.Response) -> _Answer:
    from flwr.supercore.error import FlowerError

    error = FlowerError.from_json(response.text)
    try:
        date = email.utils.parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        date = None
    return _Answer(response.status_code, int(error.code) if error else 0, date)


def _now() -> datetime:
    """By the clock that signatures bear."""
    from flwr.supercore.date import now

    found: datetime = now()
    return found


def _client(node: Admission, private: ec.EllipticCurvePrivateKey) -> Any:
    """Flower's own client of a node."""
    from flwr.supercore.interceptors.http import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    signing = NodeAuthHttpInterceptor(private, private.public_key())
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signing]
    authority = node.certificate.read_bytes()
    return FleetHttpClient.from_server_address(node.server, False, authority, interceptors=interceptors)


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ClientDataError(
            f"The node's key, '{path}', can't be read ({error.strerror}). `./certificates.sh node SITE` makes one."
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ClientDataError(
            f"The file '{path}' is no private key of a node. `./certificates.sh node SITE` makes one; `SITE.pub` is "
            "the half that goes to the server."
        )
    return key


def _as_pem(public: ec.EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _fingerprint(public: ec.EllipticCurvePublicKey) -> str:
    """As `ssh-keygen -l` shows it."""
    blob = base64.b64decode(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _is_about_certificates(error: BaseException) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error) or isinstance(error.__cause__, ssl.SSLCertVerificationError)


def _reason(error: BaseException) -> str:
    """The error's last words, without the place in OpenSSL's source."""
    return re.sub(r"^\[[^\]]*\]\s*|\s*\(_ssl\.c:\d+\)$", "", str(error)) or type(error).__name__
