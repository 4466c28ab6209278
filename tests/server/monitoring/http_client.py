"""A client of HTTP that sends any bytes and reads the response to its end."""

import asyncio
import contextlib
from dataclasses import dataclass

__all__ = ["Got", "ask", "get", "parsed"]

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Got:
    """A response: its status, its headers by lower-case name, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(port: int, sent: bytes, *, source: str = "127.0.0.1") -> Got | None:
    """Send bytes from an address; return the response, None where the connection was closed without one."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        try:
            writer.write(sent)
            received = await reader.read(-1)
        except ConnectionError:
            received = b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    return parsed(received) if received else None


def parsed(received: bytes) -> Got:
    """Return the response that was received."""
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Got(int(status.split()[1]), {name.lower(): text for name, text in headers.items()}, body)


async def get(
    port: int, target: str, *, method: str = "GET", source: str = "127.0.0.1", **headers: str
) -> Got:
    """Send a well-formed request and return its response."""
    sent = {"Host": f"127.0.0.1:{port}", **headers}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in sent.items())]
    got = await ask(port, "\r\n".join([*lines, "", ""]).encode(), source=source)
    assert got is not None
    return got
