"""What is to be read can be read, in light and in dark: contrasts as WCAG 2.1 measures them."""

import re
from importlib.resources import files

import pytest

_TEXTS = {"text", "quiet", "link", "limit"}
_PICTURES = {"line", "used", "peak", "was", "plan", "wait-1", "wait-2", "wait-3", "wait-4"}


def _luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one, other):
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrasts_suffice(scheme):
    """Texts 4.5, parts of pictures 3."""
    style = files("tidegate.pipeline.page").joinpath("page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
    assert colours.keys() == {"page", "grid"} | _TEXTS | _PICTURES
    least = {**dict.fromkeys(_TEXTS, 4.5), **dict.fromkeys(_PICTURES, 3.0)}
    contrasts = {name: round(_contrast(colours[name], colours["page"]), 2) for name in least}
    assert {name: found for name, found in contrasts.items() if found < least[name]} == {}
