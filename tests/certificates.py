"""A certificate authority for TLS tests."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


class Authority:
    """Issues certificates that are good for a day, for this machine's loopback and NAME.test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        sign = _builder(self._name, self._name, self._key.public_key())
        sign = sign.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = sign.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Make a certificate and its key, as PEM texts."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([address, x509.DNSName(f"{name}.test")])
        certificate = (
            _builder(_name(name), self._name, key.public_key())
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def server_flags(self) -> list[str]:
        """Write a server's certificate and say how etcd is told to use it and to demand one of its clients."""
        certificate, key = self.issue("server")
        texts = {"trusted-ca-file": self.pem, "cert-file": certificate, "key-file": key}
        for flag, text in texts.items():
            (self._folder / flag).write_bytes(text)
        return [f"--{flag}={self._folder / flag}" for flag in texts] + ["--client-cert-auth"]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
