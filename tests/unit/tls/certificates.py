"""Keys and certificates for the tests: an authority, and what it signs, written as PEM."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
DER = serialization.Encoding.DER


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A key and its certificate."""

    key: PrivateKeyTypes
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        """The certificate alone."""
        return self.certificate.public_bytes(PEM).decode()

    def key_pem(self, password: str | None = None, form: str = "PKCS8") -> str:
        """Return the key, encrypted where a password is given."""
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(PEM, getattr(serialization.PrivateFormat, form), encryption).decode()

    @property
    def pem(self) -> str:
        """Key and certificate."""
        return self.key_pem() + self.certificate_pem


def identity(
    name: str | x509.Name,
    signed_by: Identity | None = None,
    *,
    key: PrivateKeyTypes | None = None,
    authority: bool = False,
    since: timedelta = timedelta(hours=-1),
    until: timedelta = timedelta(days=1),
    hosts: tuple[str, ...] = ("localhost",),
) -> Identity:
    """Return a new certificate of `name`, signed by itself or another; `since` and `until` are from now."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = name if isinstance(name, x509.Name) else common_name(name)
    issuer = signed_by.certificate.subject if signed_by else subject
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since)
        .not_valid_after(now + until)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
    )
    certificate = builder.sign(signed_by.key if signed_by else key, hashes.SHA256())  # type: ignore[arg-type]
    return Identity(key=key, certificate=certificate)


def common_name(text: str) -> x509.Name:
    """Return a name of one attribute."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
