"""What the demo asks of its broker as an administrator."""

import os
import signal
import threading
import time

import pytest

from tidegate.cli.demonstration.traffic import as_admin


def _ask_and_go_on():
    as_admin(1, lambda _: time.sleep(0.02) or {})
    time.sleep(5)


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.05])
def test_no_interrupt_is_lost(after_s):
    """Wherever it comes: also while the client is made, or let go of."""
    threading.Timer(0.02 + after_s, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        _ask_and_go_on()
