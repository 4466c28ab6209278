"""Requests that leave for the broker at the end of a turn."""

from itertools import count

from tidegate.gateway.turn_sends import MAX_TOGETHER, TurnSends


class Sender:
    """Takes 5 ns to send."""

    def __init__(self) -> None:
        self.since: list[int] = []

    def send_put_off(self, since_ns: int) -> int:
        """Note the call."""
        self.since.append(since_ns)
        return since_ns + 5

    def on_failed(self, error: Exception) -> None:
        """Fail: nothing has."""
        raise AssertionError from error


class FailingSender(Sender):
    """Cannot send."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def send_put_off(self, since_ns: int) -> int:
        """Raise an error."""
        raise LookupError(since_ns)

    def on_failed(self, error: Exception) -> None:
        """Note it."""
        self.errors.append(error)


def test_requests_leave_once_at_the_end_of_the_turn_and_share_no_time():
    """Each is charged from the end of the one before it on."""
    clock = count(100, 100)
    turn = TurnSends(lambda: next(clock))
    senders = [Sender() for _ in range(3)]
    for sender in senders:
        turn.add(sender)
    assert [sender.since for sender in senders] == [[], [], []]
    assert turn.finish()
    assert [sender.since for sender in senders] == [[100], [105], [110]]
    assert turn.finish()
    assert [sender.since for sender in senders] == [[100], [105], [110]]


def test_a_request_waits_for_a_bounded_number_of_others():
    """The last one that is put off sends all before the end of the turn."""
    turn = TurnSends(lambda: 0)
    senders = [Sender() for _ in range(MAX_TOGETHER + 1)]
    for sender in senders:
        turn.add(sender)
    assert [len(sender.since) for sender in senders] == [1] * MAX_TOGETHER + [0]
    turn.finish()
    assert [len(sender.since) for sender in senders] == [1] * (MAX_TOGETHER + 1)


def test_the_time_of_sends_for_others_is_returned():
    """The caller's own time does not include it: those that were sent are charged."""
    clock = count(1_000, 7)
    turn = TurnSends(lambda: next(clock))
    assert [turn.add(Sender()) for _ in range(MAX_TOGETHER)] == [0] * (MAX_TOGETHER - 1) + [14]


def test_one_that_fails_keeps_no_other_from_sending():
    """It is told, and its time is charged to no other."""
    clock = count(100, 100)
    turn = TurnSends(lambda: next(clock))
    senders = [Sender(), FailingSender(), Sender()]
    for sender in senders:
        turn.add(sender)
    assert turn.finish()
    assert [sender.since for sender in senders] == [[100], [], [200]]
    assert [str(error) for error in senders[1].errors] == ["105"]
