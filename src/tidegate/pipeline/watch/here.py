"""A watch in this process: look, take in what has arrived, write down how far that is."""

from collections.abc import Sequence
from pathlib import Path

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.watch.arrivals import LATENESS_S, Arrivals, newest_hour_ms
from tidegate.pipeline.watch.checkpoint import Checkpoint, WatchState
from tidegate.pipeline.watch.node import Advance, NodeWatch, advances
from tidegate.pipeline.watch.totals import Totals

__all__ = ["WatchHere"]

_ROWS_A_STEP = 500_000


class WatchHere:
    """A watch of a record, from a time on: None is the newest hour at the first look that finds any.

    The rows of its hour before `from_ms` are replayed for the state that they leave, and not counted. A watch continues
    where `checkpoint` ends, with the `from_ms` of its first run. lateness_s: seconds for which rows wait for earlier
    rows of their node. Raises `TidegateError`.
    """

    def __init__(
        self,
        directory: Path,
        plans: Sequence[Plan],
        *,
        window_ms: int,
        from_ms: int | None = None,
        checkpoint: Checkpoint | None = None,
        lateness_s: float = LATENESS_S,
    ) -> None:
        self._lateness_s = lateness_s
        self._directory = directory
        self._checkpoint = checkpoint
        state = None if checkpoint is None else checkpoint.read(directory=directory, plans=plans)
        if state is None:
            totals = Totals(window_ms=window_ms)
            state = WatchState(
                directory=str(directory.resolve()), plans=plans, totals=totals, from_ms=from_ms
            )
        state.totals.window_ms = window_ms
        self._state = state
        self._arrivals = self._look()

    @property
    def totals(self) -> Totals:
        """Return what was found."""
        return self._state.totals

    def step(self) -> list[Advance]:
        """Process the rows that have arrived, up to a maximum; return the advances, an empty list if there are none."""
        state = self._state
        if state.from_ms is None:
            state.from_ms = newest_hour_ms(self._directory)
            self._arrivals = self._look()
        late = self._arrivals.late(state.totals.missing)
        state.totals.add_late(late)
        ends = self._arrivals.latest(state.offsets, most_rows=_ROWS_A_STEP)
        done: list[Advance] = []
        for node_id, end_seq in sorted(ends.items()):
            after_seq = state.offsets.get(node_id, -1)
            pieces = self._arrivals.pieces(node_id, after_seq, end_seq) if end_seq > after_seq else []
            new_node = NodeWatch(node_id=node_id, plans=state.plans, counted_from_ms=state.from_ms)
            node = state.nodes.setdefault(node_id, new_node)
            done += advances(node, pieces, after_seq=after_seq, end_seq=end_seq)
        if ends != state.offsets:
            state.offsets = ends
            state.totals.add_advances(done)
        elif not late:
            return done
        if self._checkpoint is not None:
            self._checkpoint.write(state)
        return done

    def _look(self) -> Arrivals:
        return Arrivals(self._directory, from_ms=self._state.from_ms, lateness_s=self._lateness_s)
