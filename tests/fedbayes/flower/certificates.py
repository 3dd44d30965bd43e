"""A certificate authority, the server's certificate on loopback, and nodes' keys, as the files that Flower reads."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
OPEN = serialization.NoEncryption()


def make_certificates(folder: Path) -> None:
    """``ca.crt``, and ``server.pem`` with ``server.key`` for 127.0.0.1 and localhost."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("fedbayes test CA", authority, "fedbayes test CA", authority, authority=True)
    server = _certificate("localhost", key, "fedbayes test CA", authority, authority=False)
    (folder / "ca.crt").write_bytes(root.public_bytes(PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(PEM))
    _write_secret(folder / "server.key", key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, OPEN))


def make_node_key(path: Path) -> None:
    """As ``ssh-keygen -t ecdsa -b 384 -f path``."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, OPEN))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, authority: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not authority:
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
