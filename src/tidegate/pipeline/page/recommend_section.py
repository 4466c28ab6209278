"""The section on the quotas to set: what `tidegate recommend` proposes, and what it says of that."""

from collections.abc import Sequence

from tidegate.config.quotas_file import QuotaEntry
from tidegate.pipeline.page.parts import Column, Section, Table
from tidegate.pipeline.recommend import LEAST, Recommendation, Wanted
from tidegate.pipeline.replay.plan import QUOTA_TYPES
from tidegate.pipeline.report.recommend_notes import recommend_notes
from tidegate.pipeline.report.text import QUOTA_NAMES, count_text, name_text
from tidegate.pipeline.rounding import given_text
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["recommend_section"]

_MOST_ROWS = 40
_LONGEST = 1000  # characters of a sentence
_TITLE = "Which quotas to set"


def recommend_section(found: Recommendation | str | None, *, rows: int) -> Section | None:
    """Return the section; None where nobody asked. found: the quotas, or why there are none."""
    if found is None:
        return None
    if isinstance(found, str):
        return Section(anchor="recommendation", title=_TITLE, sentences=[found])
    entries = found.quotas.entries
    sentences = _sentences(recommend_notes(found, Wanted(), events=rows))
    if len(entries) > _MOST_ROWS:
        sentences.append(f"{count_text(len(entries) - _MOST_ROWS)} more quotas are left out here.")
    sentences.append("The command tidegate recommend writes them as a quotas.yaml, or as commands of Kafka.")
    table = Table(
        caption="Proposed quotas, per second and broker",
        columns=[
            Column("entity"),
            *(Column(QUOTA_NAMES[quota_type.value], True) for quota_type in QUOTA_TYPES),
            Column("why"),
        ],
        rows=[_cells(entry) for entry in entries[:_MOST_ROWS]],
    )
    return Section(anchor="recommendation", title=_TITLE, sentences=sentences, tables=[table])


def _sentences(notes: Sequence[str]) -> list[str]:
    """Return the notes as they are on the terminal; what is listed below a line stands behind it."""
    sentences: list[str] = []
    for note in notes:
        shown = name_text(note.strip(), longest=_LONGEST)
        if note.startswith(" "):
            sentences[-1] += (" " if sentences[-1].endswith(":") else "; ") + shown
        else:
            sentences.append(shown)
    return sentences


def _cells(entry: QuotaEntry) -> list[str]:
    named = " ".join(
        f"{kind}={'<default>' if name is None else name_text(name)}"
        for kind, name in sorted(entry.entity)[::-1]
    )
    limits = [_limit_text(entry, quota_type) for quota_type in QUOTA_TYPES]
    return [named, *limits, name_text(entry.reason or "", longest=_LONGEST)]


def _limit_text(entry: QuotaEntry, quota_type: QuotaType) -> str:
    """Return a proposed limit; a floor is named as one, `–` stands for none."""
    value = entry.values.get(quota_type.key)
    if value is None:
        return "–"
    text = given_text(quota_type.value, value)
    return f"{text} (floor)" if value == LEAST[quota_type.value] else text
