"""Answers that come later and are long: made in slices of their own, since the front does not run them."""

from functools import partial

from tidegate.scheduling import Scheduler
from tidegate.server.handler import Answer, Deferred, Work

__all__ = ["complete_in_slices"]

_STEPS_AT_ONCE = 100  # in one turn; each reads or writes one partition


def complete_in_slices(deferred: Deferred, work: Work, scheduler: Scheduler) -> None:
    """Complete `deferred` with what `work` returns: now where it is short, otherwise after several turns.

    The work is dropped when the client leaves.
    """
    if deferred.cancelled:
        return
    try:
        for _ in range(_STEPS_AT_ONCE):
            next(work)
    except StopIteration as stop:
        deferred.complete(stop.value)
    except Exception as error:
        deferred.complete_by(partial(_raise, error))
    else:
        scheduler.call_soon(complete_in_slices, deferred, work, scheduler)


def _raise(error: Exception) -> Answer:
    raise error
