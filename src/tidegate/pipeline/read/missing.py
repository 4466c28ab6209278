"""Rows that a usage record has, and rows that are missing from it, by the evidence in each chunk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.pipeline.layout import EXACT, REASON_NAMES
from tidegate.pipeline.read.chunks import Bundle, Chunk, looked_at, opened_chunk, read_chunk
from tidegate.pipeline.read.columns import numbers_of_names
from tidegate.pipeline.read.control_events import CONTROL_COLUMNS, ControlEvents, events_together
from tidegate.pipeline.read.runs import runs_by_chunk
from tidegate.pipeline.read.survey import check_kinds, control_of
from tidegate.pipeline.read.timeline import Run, Timeline, gaps_of, timelines

__all__ = [
    "Coverage",
    "Evidence",
    "Missing",
    "NodeChunk",
    "NodeRows",
    "chunk_evidence",
    "coverage_of",
    "missing_in",
]

_KINDS = ("start", "gap")


class Evidence(NamedTuple):
    """Evidence from chunks: their starts and gaps, and the rows that each chunk has."""

    control: ControlEvents
    runs: list[tuple[Chunk, list[Run]]]


class NodeChunk(NamedTuple):
    """A chunk, and the first and last `seq` of a node's rows in it."""

    first_seq: int
    last_seq: int
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRows:
    """The chunks that have rows of a node, in order of the first."""

    node_id: int
    chunks: Sequence[NodeChunk]

    @property
    def size_bytes(self) -> int:
        """Return what the chunks take uncompressed."""
        return sum(each.chunk.size_bytes for each in self.chunks)

    @property
    def rows(self) -> int:
        """Return how many rows the chunks have."""
        return sum(each.chunk.rows for each in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A place in the record of a node before which rows are missing.

    reason: `gap` (the node reported it), `missing rows` (a file does not exist) or `cold start` (no earlier rows
    exist). lost_events: their number, if the node reported it.
    """

    node_id: int
    seq: int
    ts_ms: int
    reason: str
    lost_events: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The chunks that have rows of each node, in order of the first, and what is missing, by node and in order."""

    nodes: Mapping[int, Sequence[NodeChunk]]
    missing: Sequence[Missing]


def chunk_evidence(chunk: Chunk | Bundle) -> Evidence:
    """Look at a chunk. Raises `UsageFilesError` for a kind of row that is none of the usage record."""
    return looked_at(chunk, _evidence)


def _evidence(chunk: Chunk | Bundle) -> Evidence:
    with opened_chunk(chunk, CONTROL_COLUMNS) as opened:
        table = read_chunk(opened, ("kind",))
        check_kinds(table, opened.path)
        wanted = numbers_of_names(table, "kind", lambda name: name in _KINDS, bool)
        chunks = chunk.chunks if isinstance(chunk, Bundle) else (chunk,)
        return Evidence(control_of(opened, wanted), [*zip(chunks, runs_by_chunk(opened), strict=True)])


def coverage_of(evidence: Iterable[Evidence]) -> Coverage:
    """Return what the chunks show together. Raises `UsageFilesError` where rows are there twice."""
    found = list(evidence)
    control = events_together(each.control for each in found)
    runs_of_chunks = [of_chunk for each in found for of_chunk in each.runs]
    by_node = timelines(control, [run for _, runs in runs_of_chunks for run in runs])
    missing = missing_in(by_node, gaps_of(control))
    return Coverage(nodes=_chunks_of_nodes(runs_of_chunks), missing=missing)


def missing_in(by_node: Mapping[int, Timeline], lost: Mapping[tuple[int, int], int | None]) -> list[Missing]:
    """Return the missing rows that the timelines of all nodes show. lost: `lost_events` by node and `seq`."""
    return [
        Missing(
            node_id=node_id,
            seq=step.seq,
            ts_ms=step.ts_ms,
            reason=REASON_NAMES[step.reason],
            lost_events=lost.get((node_id, step.seq)) if step.kind == "gap" else None,
        )
        for node_id, timeline in sorted(by_node.items())
        for step in timeline.steps.only(timeline.steps.where(lambda step: step.reason != EXACT))
    ]


def _chunks_of_nodes(runs_of_chunks: Iterable[tuple[Chunk, list[Run]]]) -> dict[int, list[NodeChunk]]:
    found: dict[int, dict[Chunk, NodeChunk]] = {}
    for chunk, runs in runs_of_chunks:
        for run in runs:
            chunks = found.setdefault(run.node_id, {})
            before = chunks.get(chunk, NodeChunk(run.first_seq, run.last_seq, chunk))
            first_seq, last_seq = min(before.first_seq, run.first_seq), max(before.last_seq, run.last_seq)
            chunks[chunk] = NodeChunk(first_seq, last_seq, chunk)
    return {
        node_id: sorted(
            chunks.values(), key=lambda each: (each.first_seq, each.chunk.path, each.chunk.row_group)
        )
        for node_id, chunks in sorted(found.items())
    }
