"""Family `sanitizer` (B§3.10, 1.7): names in metric tags and JMX bean names."""

from collections.abc import Iterator

from players._steps import play_steps
from tidegate.quota.admin.sanitizer import SanitizeError, desanitize, jmx_sanitize, sanitize

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario; nothing is kept between steps."""
    return play_steps(_Player(), scenario)


class _Player:
    def sanitize(self, **args: str) -> dict:
        out = sanitize(args["in"])
        return {"out": out, "back": desanitize(out), "jmx": jmx_sanitize(args["in"])}

    def desanitize(self, **args: str) -> dict:
        try:
            return {"out": desanitize(args["in"])}
        except SanitizeError:
            return {"error": "IllegalArgumentException"}

    def jmx_unquoted_chars(self) -> dict:
        every_char = map(chr, range(0x10000))
        return {"chars": "".join(char for char in every_char if jmx_sanitize(char) == char)}
