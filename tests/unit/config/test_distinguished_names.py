"""Subjects of certificates as Java writes them: each answer of the JDK (`tests/vectors/principals`)."""

import json
from pathlib import Path

import pytest
from tests.unit.tls.certificates import DER, identity

from tidegate.config.distinguished_names import NotDerError, distinguished_name, name_text

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "principals" / "names.json").read_text())


def test_names_are_as_recorded() -> None:
    """All names that the JDK was asked: odd types, odd letters, broken texts, several attributes in one part."""
    assert len(RECORDED) >= 700
    differences = []
    for name, recorded in RECORDED:
        try:
            text: str | None = name_text(bytes.fromhex(name))
        except NotDerError:
            text = None
        if text != recorded:
            differences.append((name, recorded, text))
    assert differences == []


def test_a_certificate_has_its_subject() -> None:
    """Not its issuer, whether it is of version 3 or not."""
    certificate = identity("alice", identity("authority", authority=True)).certificate.public_bytes(DER)
    assert distinguished_name(certificate) == "CN=alice"


def test_bytes_that_are_no_certificate_are_refused() -> None:
    """Cut or changed anywhere, there is an error of ours or a name."""
    certificate = identity("alice").certificate.public_bytes(DER)
    for end in range(len(certificate)):
        with pytest.raises(NotDerError):
            distinguished_name(certificate[:end])
    for at in range(len(certificate)):
        for byte in (0, 0x30, 0x7F, 0x80, 0x84, 0xFF):
            changed = certificate[:at] + bytes((byte,)) + certificate[at + 1 :]
            try:
                distinguished_name(changed)
            except NotDerError:
                continue
