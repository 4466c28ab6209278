"""kafka-python leaves a socket to the garbage collector if it is closed while a request is being written.

A test of the same process would fail by the warning, at any time later.
"""

import pytest

__all__ = ["MAY_LEAVE_SOCKETS"]

MAY_LEAVE_SOCKETS = [
    pytest.mark.filterwarnings("ignore:unclosed <(ssl.SSLSocket|socket.socket):ResourceWarning"),
    pytest.mark.usefixtures("left_sockets_are_closed"),
]
"""The marks of tests that run kafka-python in their own process."""
