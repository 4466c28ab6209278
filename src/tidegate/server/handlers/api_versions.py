"""ApiVersions (key 18), v0-4. KIP-35, KIP-511.

Answers with the APIs that the handler table serves. A version we do not know is answered in the v0 form with
error 35 and the range of ApiVersions alone, so that newer clients can step down. Name and version of the client's
software are checked and kept for the usage record.

Not implemented: supported and finalized features (none are claimed). Produce is advertised from version 0, as Kafka
does for the sake of old clients, and served from version 3.
"""

import re
from collections.abc import Iterable

from tidegate import error_codes
from tidegate.api_keys import API_VERSIONS, PRODUCE
from tidegate.server.requests.handler import Answer, Handler, Message, Request
from tidegate.wire import API_BY_KEY, Encoded, encode_response, field_since

__all__ = ["SOFTWARE_SINCE", "api_versions_handler", "good_software", "unsupported_version_answer"]

MAX_SOFTWARE_CHARS = 256
"""Letters of a software's name, and of its version, that a connection remembers: 5 MB in 10,000 connections."""
MAX_KNOWN_SOFTWARE = 256
"""Kinds of client software that are recognised by their bytes; when there are more, all are forgotten."""
_LONGEST_KNOWN_BYTES = 256  # of such bytes; names and versions are texts of no more: 256 KB in all
SOFTWARE_SINCE = field_since(API_VERSIONS, "request", "client_software_name")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # Kafka `ApiVersionsRequest`


def api_versions_handler(served: Iterable[int]) -> Handler:
    """Return the handler that advertises the API keys `served`."""
    keys = [_range(key) for key in sorted({*served, API_VERSIONS})]
    kept: dict[int, Encoded] = {}
    known: dict[bytes, tuple[str, str]] = {}  # good software by the body that it came in

    def handle(request: Request) -> Answer:
        header = request.header
        if header.api_version >= SOFTWARE_SINCE:
            body = bytes(request.frame[header.body_at : header.body_at + _LONGEST_KNOWN_BYTES + 1])
            software = known.get(body) or good_software(request)
            if software is None:
                return request.answer(_body(error_codes.INVALID_REQUEST, []))
            if len(body) <= _LONGEST_KNOWN_BYTES and body not in known:
                if len(known) >= MAX_KNOWN_SOFTWARE:
                    known.clear()
                known[body] = software
            request.connection.set_software(software)
        encoded = kept.get(header.api_version)
        if encoded is None:
            encoded = kept[header.api_version] = request.encode(_body(error_codes.NONE, keys))
        return Answer(encoded.with_correlation_id(header.correlation_id))

    return handle


def unsupported_version_answer(correlation_id: int) -> Encoded:
    """Return the answer to an ApiVersions request of a version that is not served."""
    return encode_response(
        API_VERSIONS, 0, correlation_id, _body(error_codes.UNSUPPORTED_VERSION, [_range(API_VERSIONS)])
    )


def good_software(request: Request) -> tuple[str, str] | None:
    """Return name and version of the client's software, cut; None where one of them is not in Kafka's form."""
    body = request.body()
    name, version = body["client_software_name"], body["client_software_version"]
    is_good = _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)
    return (name[:MAX_SOFTWARE_CHARS], version[:MAX_SOFTWARE_CHARS]) if is_good else None


def _range(key: int) -> Message:
    api = API_BY_KEY[key]
    least = 0 if key == PRODUCE else api.min_version
    return {"api_key": key, "min_version": least, "max_version": api.max_version}


def _body(error_code: int, keys: list[Message]) -> Message:
    return {
        "error_code": error_code,
        "api_keys": keys,
        "throttle_time_ms": 0,
        "supported_features": [],
        "finalized_features_epoch": -1,
        "finalized_features": [],
        "zk_migration_ready": False,
    }
