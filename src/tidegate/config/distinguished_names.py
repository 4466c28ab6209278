r"""The subject of a certificate as Java writes it, which is what Kafka makes a principal of.

Relative names are in reverse order, with `,` between them and `+` inside one. Attributes without a name in RFC 2253
are `1.2.3=#` and the value's DER in hexadecimal.

Follows: RFC 2253, `javax.security.auth.x500.X500Principal.getName()` of OpenJDK.
"""

from collections.abc import Iterator

__all__ = ["NotDerError", "certificate_subject", "distinguished_name", "name_text"]

_SEQUENCE = 0x30
_SET = 0x31
_OBJECT_IDENTIFIER = 0x06
_VERSION = 0xA0
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""Tags of UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString."""
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANK = " \r"
_LONGEST_IDENTIFIER = 4096  # bytes, `ObjectIdentifier.MAXIMUM_OID_SIZE`


class NotDerError(ValueError):
    """Raise when bytes are not the certificate or the name that they should be."""


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER as text. Raises `NotDerError`."""
    return name_text(certificate_subject(certificate))


def name_text(name: bytes) -> str:
    """Return a name in DER as text. Raises `NotDerError`."""
    _, content, _ = _one(name, _SEQUENCE)
    names = [_relative_name(part) for _, part, _ in _elements(content, _SET)]
    return ",".join(reversed(names))


def certificate_subject(certificate: bytes) -> bytes:
    """Return the subject of a certificate, both in DER. Raises `NotDerError`."""
    _, whole, _ = _one(certificate, _SEQUENCE)
    _, signed, _ = next(_elements(whole), (0, b"", b""))
    parts = [(tag, whole) for tag, _, whole in _elements(signed)]
    if parts and parts[0][0] == _VERSION:
        del parts[0]
    if len(parts) < 5 or parts[4][0] != _SEQUENCE:
        raise NotDerError("certificate has no subject")
    return parts[4][1]


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(pair) for _, pair, _ in _elements(content, _SEQUENCE))


def _attribute(pair: bytes) -> str:
    parts = list(_elements(pair))
    if len(parts) != 2 or parts[0][0] != _OBJECT_IDENTIFIER:
        raise NotDerError("attribute is not an identifier and a value")
    identifier = _identifier(parts[0][1])
    tag, content, whole = parts[1]
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or identifier}=#{whole.hex()}"
    return f"{keyword}={_escaped(content.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    """Return a value with a backslash before the characters that RFC 2253 escapes, and before blanks at its ends."""
    text = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in text)
    text = text.replace("\0", "\\00")
    inner = text.strip(_BLANK)
    if not inner:
        return "".join(f"\\{letter}" for letter in text)
    at = text.index(inner)
    ends = (text[:at], text[at + len(inner) :])
    before, after = ("".join(f"\\{letter}" for letter in end) for end in ends)
    return f"{before}{inner}{after}"


def _identifier(content: bytes) -> str:
    """Return an object identifier with dots."""
    if not content or content[-1] & 0x80 or len(content) > _LONGEST_IDENTIFIER:
        raise NotDerError(f"object identifier of {len(content)} bytes is too long or incomplete")
    numbers = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _one(data: bytes, tag: int) -> tuple[int, bytes, bytes]:
    found = list(_elements(data, tag))
    if len(found) != 1:
        raise NotDerError(f"expected one element, found {len(found)}")
    return found[0]


def _elements(data: bytes, expected: int | None = None) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and all bytes of each element of `data`. Raises `NotDerError`, also for another tag."""
    at = 0
    while at < len(data):
        tag = data[at]
        if expected is not None and tag != expected:
            raise NotDerError(f"expected tag {expected}, found {tag}")
        start, length = _length(data, at + 1)
        end = start + length
        if end > len(data):
            raise NotDerError("element is longer than the element that contains it")
        yield tag, data[start:end], data[at:end]
        at = end


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return where the content of an element starts, and its length."""
    first = data[at] if at < len(data) else 0x80
    if first < 0x80:
        return at + 1, first
    count = first & 0x7F
    if not 1 <= count <= 4 or at + 1 + count > len(data):
        raise NotDerError("element has no length")
    return at + 1 + count, int.from_bytes(data[at + 1 : at + 1 + count], "big")
