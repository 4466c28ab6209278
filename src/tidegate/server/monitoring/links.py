"""Signed links to the explanation of one client: fields, signature, and the check of both.

>>> key = link_key("0123456789abcdef")
>>> fields = signed_fields(key, user="alice", client_id="billing", expires_s=1_800_000_000)
>>> is_signed(key, fields, now_s=1_799_999_999), is_signed(key, fields, now_s=1_800_000_000)
(True, False)
>>> is_signed(key, {**fields, "user": "bob"}, now_s=1_799_999_999)
False

The signature is over the decoded names and the expiry, so neither the order of the fields nor their encoding matters.
The key comes from the listener's token: a new token ends all links. Deriving it is slow, because a reader of a link
could otherwise try many tokens.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping

from tidegate.fair_share import ANONYMOUS

__all__ = ["LINK_FIELDS", "LINK_PATH", "MAX_LINK_S", "is_link", "is_signed", "link_key", "signed_fields"]

LINK_PATH = "/explain"
LINK_FIELDS = frozenset(("user", "client-id", "expires", "signature"))
MAX_LINK_S = 30 * 86_400
"""Longest validity of a link."""
_CLOCK_DIFFERENCE_S = 3600
"""Most that the clock of the command that signs may be ahead of the broker's."""
_EXPIRES = re.compile(r"[1-9][0-9]{0,11}", re.ASCII)
_SALT = b"tidegate: key of links to /explain"
_ROUNDS = 100_000  # 50 ms


def link_key(token: str) -> bytes:
    """Return the key of the links of a listener with this token."""
    return hashlib.pbkdf2_hmac("sha256", token.encode(), _SALT, _ROUNDS)


def signed_fields(key: bytes, *, user: str, client_id: str, expires_s: int) -> dict[str, str]:
    """Return the fields of a link to a client that is valid until `expires_s`, in s of Unix time."""
    user = user or ANONYMOUS
    signature = _signature(key, user, client_id, expires_s)
    return {"user": user, "client-id": client_id, "expires": str(expires_s), "signature": signature}


def is_link(query: Mapping[str, str]) -> bool:
    """Return whether a query is meant as a link, valid or not."""
    return "expires" in query or "signature" in query


def is_signed(key: bytes, query: Mapping[str, str], *, now_s: int) -> bool:
    """Return whether a query has exactly the fields of a link, is signed with `key`, and is valid at `now_s`."""
    if query.keys() != LINK_FIELDS or not _EXPIRES.fullmatch(query["expires"]):
        return False
    expires_s = int(query["expires"])
    expected = _signature(key, query["user"], query["client-id"], expires_s)
    given = query["signature"].encode("utf-8", "replace")
    is_genuine = hmac.compare_digest(given, expected.encode())
    return is_genuine and now_s < expires_s <= now_s + MAX_LINK_S + _CLOCK_DIFFERENCE_S


def _signature(key: bytes, user: str, client_id: str, expires_s: int) -> str:
    signed = json.dumps([user, client_id, expires_s]).encode()
    digest = hmac.digest(key, signed, "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
