"""The partition log against a list of batches: appends, reads, rolls, restarts and torn tails."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.storage.node import NOW_MS, batch, new_log

from tidegate.wire.batch import assign_offsets

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

    def teardown(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.root)

    @rule(count=st.integers(1, 5), value=st.binary(max_size=60))
    def append(self, count: int, value: bytes) -> None:
        """Append a batch: the log gives it the next offset."""
        data = bytearray(batch(count, value=value))
        base, _ = self.log.append(memoryview(bytes(data)), NOW_MS, 9)
        assert base == self.end
        assign_offsets(data, 0, base_offset=base, leader_epoch=0)
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
