"""Secure sums: a site hides its term of a sum behind masks that the other sites' masks cancel.

Each two sites agree on a secret by X25519, which the server can't compute from what it carries between them. For every
request they stretch it to a mask, of which the one adds what the other subtracts (Bonawitz et al. 2017, section 4,
without recovery of sites that drop out). Of single terms the server sees uniform bits; the sum over all sites is exact.
A mask depends on all that the sites are told alike: the masks of sites that were asked different things do not cancel.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbayes.network.fixed_point import negative, plus

_INFO = b"fedbayes secure sums 1"
_PRIME = 2**255 - 19  # of the field of X25519: a key is a number below it, and others stand for the same key


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
    """Of a public key, short enough to be read to somebody.

    Raises
    ------
    ValueError
        It is no key, or another way to write one.
    """
    key = bytes.fromhex(public)
    if len(key) != 32 or int.from_bytes(key, "little") >= _PRIME:
        raise ValueError("A public key is none.")
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


class Masks(NamedTuple):
    """What one site needs to hide its terms in one run.

    Attributes
    ----------
    place
        Of this site.
    secrets
        The one that it shares with each other site, by place.
    """

    place: int
    secrets: Mapping[int, bytes]

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
            A key is none, or two sites have one secret with this one.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        mine, about = (
            X25519PrivateKey.from_private_bytes(bytes.fromhex(private)),
            repr((sorted(run.items()), list(keys))),
        )
        others = {other: X25519PublicKey.from_public_bytes(bytes.fromhex(keys[other])) for other in range(len(keys))}
        raw = {other: mine.exchange(key) for other, key in others.items() if other != place}
        if len(set(raw.values())) < len(raw):
            raise ValueError("Two sites have one key.")
        secrets = {
            other: HKDF(SHA256(), 32, None, _INFO + f"{sorted((place, other))} {about}".encode()).derive(secret)
            for other, secret in raw.items()
        }
        return cls(place, secrets)

    def hide(self, term: np.ndarray, asked: bytes) -> np.ndarray:
        """A term ``(n, 2)`` under the masks of one request.

        Parameters
        ----------
        term
            Integers.
        asked
            What stands for the request. The same must never come twice.
        """
        for other, secret in self.secrets.items():
            mask = _stream(secret, asked, len(term))
            term = plus(term, mask if other < self.place else negative(mask))
        return term


def _stream(secret: bytes, asked: bytes, num: int) -> np.ndarray:
    """The mask of two sites for a request: ``num`` integers, each of two words."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    key = hmac.digest(secret, b"mask %d " % num + asked, "sha256")
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(16 * num))
    return np.frombuffer(stream, "<u8").reshape(num, 2)
