"""The partition log against a list of batches: appends, turns, full disks, reads, rolls, restarts and torn tails."""

import resource
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.batches import assign_offsets
from tests.unit.storage.logs import NOW_MS, batch, new_log

from tidegate.storage.log.turn_writes import TurnWrites

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 150}


class LogMachine(RuleBasedStateMachine):
    """A log and its model: pairs of base offset and the bytes that must be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tidegate-log-"))
        self.starts = 0
        self.directory = self.root / "0"
        self.log = new_log(self.directory, **SETTINGS)
        self.model: list[tuple[int, bytes]] = []
        self.end = 0
        self.turn = TurnWrites()
        self.kept = 0  # so many batches of the model have been answered: they may never be lost

    def teardown(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.root)

    @rule(count=st.integers(1, 5), value=st.binary(max_size=60))
    def append(self, count: int, value: bytes) -> None:
        """Append a batch that is answered at once: the log gives it the next offset."""
        self.store(count, value, None)
        self.kept = len(self.model)

    @rule(batches=st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=60)), max_size=6))
    def append_in_turn(self, batches: list[tuple[int, bytes]]) -> None:
        """Append batches that are written when the turn ends, or when something reads before that."""
        for count, value in batches:
            self.store(count, value, self.turn)

    @rule()
    def end_turn(self) -> None:
        """Write what the turn has gathered."""
        assert self.turn.finish()
        self.kept = len(self.model)

    @rule(room=st.integers(0, 300))
    def end_turn_on_a_full_disk(self, room: int) -> None:
        """Write as much as there is room for; what was not answered may be taken back, nothing else."""
        size_bytes = max((path.stat().st_size for path in self.directory.glob("*.log")), default=0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + room, limits[1]))
        try:
            done = self.turn.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not self.log.failed
        assert self.turn.failed == (set() if done else {self.log})
        self.take_over(all_kept=done)

    def take_over(self, *, all_kept: bool) -> None:
        """Go on with what the log holds: a beginning of the model, with all that was answered."""
        while self.model and self.model[-1][0] >= self.log.end_offset:
            self.model.pop()
            assert not all_kept
        assert len(self.model) >= self.kept
        self.kept = len(self.model)
        self.end = self.log.end_offset

    def store(self, count: int, value: bytes, turn: TurnWrites | None) -> None:
        data = bytearray(batch(count, value=value))
        base, _ = self.log.append(memoryview(bytes(data)), NOW_MS, 9, turn)
        assert base == self.end
        assign_offsets(data, base_offset=base, leader_epoch=0)
        self.model.append((base, bytes(data)))
        self.end += count

    @precondition(lambda self: self.end > 0)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read from any offset with any limit: what comes is what lies there, the first batch whole."""
        offset = data.draw(st.integers(0, self.end - 1))
        limit = data.draw(st.integers(0, 2000))
        at = max(n for n, (base, _) in enumerate(self.model) if base <= offset)
        found = self.log.read(offset, limit)
        assert found is not None
        expected = b"".join(stored for _, stored in self.model[at:])
        assert expected.startswith(found.read())
        first = len(self.model[at][1])
        assert first <= len(found) <= max(limit, first)

    @rule()
    def reopen_after_close(self) -> None:
        """Close and open again."""
        self.log.close()
        self.log = new_log(self.directory, **SETTINGS)
        self.turn = TurnWrites()
        self.take_over(all_kept=True)

    @rule(trust=st.booleans(), torn=st.binary(max_size=80))
    def reopen_after_kill(self, trust: bool, torn: bytes) -> None:
        """Go on with a copy, as after a kill, with part of a batch behind the end."""
        self.starts += 1
        copy = self.root / str(self.starts)
        shutil.copytree(self.directory, copy)
        newest = sorted(copy.glob("*.log"))[-1:]
        for path in newest:
            with open(path, "ab") as file:
                file.write(batch(value=torn)[: len(torn)])
        self.directory = copy
        self.log = new_log(copy, trust_writes=trust, **SETTINGS)
        self.turn = TurnWrites()
        self.take_over(all_kept=False)

    @invariant()
    def ends_agree(self) -> None:
        """Start and end are the model's."""
        assert (self.log.start_offset, self.log.end_offset) == (0, self.end)

    @invariant()
    def sizes_agree(self) -> None:
        """Not a byte more or less is stored."""
        assert self.log.size_bytes == sum(len(stored) for _, stored in self.model)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=40, stateful_step_count=30)
