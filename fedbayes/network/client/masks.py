"""Secure sums: a site hides its term of a sum behind masks that the other sites' masks cancel.

Each two sites agree on a secret by X25519, which the server can't compute from what it carries between them. For every
request they stretch it to a mask, of which the one adds what the other subtracts (Bonawitz et al. 2017, section 4,
without recovery of sites that drop out). Of single terms the server sees uniform bits; the sum over all sites is exact.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbayes.network.fixed_point import negative, plus

_INFO = b"fedbayes secure sums 1"


def public_key(private: str) -> str:
    """What the other sites are told, as hexadecimal digits; empty where the package ``cryptography`` is missing.

    Parameters
    ----------
    private
        32 random bytes as hexadecimal digits.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ModuleNotFoundError:
        return ""
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(private)).public_key().public_bytes_raw().hex()


def fingerprint(public: str) -> str:
    """Of a public key, short enough to be read to somebody."""
    digest = hashlib.sha256(bytes.fromhex(public)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Masks(NamedTuple):
    """What one site needs to hide its terms in one run.

    Attributes
    ----------
    added, subtracted
        The secrets shared with the sites whose masks it adds, and with those whose masks it subtracts.
    """

    added: tuple[bytes, ...]
    subtracted: tuple[bytes, ...]

    @classmethod
    def agreed(cls, private: str, place: int, keys: Sequence[str], run: Mapping[str, Any]) -> "Masks":
        """The secrets of the site at ``place``, from all sites' public keys.

        Parameters
        ----------
        private
            See :func:`public_key`.
        place
            Of this site among the keys.
        keys
            Of all sites, in the order of the run.
        run
            What else the secrets depend on: another study or run has others.

        Raises
        ------
        ValueError
            A key is none.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        mine = X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
        about = _INFO + repr((sorted(run.items()), list(keys))).encode()

        def shared(key: str) -> bytes:
            secret = mine.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
            return HKDF(SHA256(), 32, None, about).derive(secret)

        return cls(tuple(map(shared, keys[:place])), tuple(map(shared, keys[place + 1 :])))

    def hide(self, term: np.ndarray, ticket: str) -> np.ndarray:
        """A term ``(n, 2)`` with all masks of one request; ``ticket`` names that, and must never come twice."""
        for secret in self.added:
            term = plus(term, _stream(secret, ticket, len(term)))
        for secret in self.subtracted:
            term = plus(term, negative(_stream(secret, ticket, len(term))))
        return term


def _stream(secret: bytes, ticket: str, num: int) -> np.ndarray:
    """The mask of two sites for a request: ``num`` integers, each of two words."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    key = hmac.digest(secret, ticket.encode(), "sha256")
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(16 * num))
    return np.frombuffer(stream, "<u8").reshape(num, 2)
