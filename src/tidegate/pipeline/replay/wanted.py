"""The accounts that rows need and that were not looked up: found once for all plans whose definitions never change."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import Int16s, Int32s, Int64s, Rows
from tidegate.pipeline.replay.kernel import wanted_kernel
from tidegate.pipeline.replay.plan import QUOTA_TYPES

__all__ = ["SharedWanted", "Wanted", "wanted_of"]


class Wanted(NamedTuple):
    """Accounts to look up, and how many rows ask for permits.

    clients: by the place in `QUOTA_TYPES`, the numbers of some clients, rising.
    """

    clients: Mapping[int, npt.NDArray[np.integer[Any]]]
    mutations: int


def wanted_of(flags: Int16s, client: Int32s, looked_up: Int64s, versions: Int64s) -> Wanted:
    """Return what rows need; see `kernel.find_wanted`."""
    wanted = np.empty(min(2 * len(flags), looked_up.size), np.int64)
    found, mutations = wanted_kernel()(flags, client, looked_up, versions, wanted)
    index_of, clients = np.divmod(np.sort(wanted[:found]), looked_up.shape[1])
    return Wanted({index: clients[index_of == index] for index in np.unique(index_of).tolist()}, mutations)


class SharedWanted:
    """The accounts that each batch needs, for plans that take the same batches and never look up a client again."""

    def __init__(self, clients: int) -> None:
        self._looked_up = np.zeros((len(QUOTA_TYPES), clients), np.int64)
        self._versions = np.ones(len(QUOTA_TYPES), np.int64)
        self._rows: Rows | None = None
        self._wanted = Wanted({}, 0)

    def of(self, rows: Rows) -> Wanted:
        """Return what is new in a batch; plans that have looked up what is in all before it have to look up no more."""
        if rows is not self._rows:
            self._wanted = wanted_of(rows.flags, rows.client, self._looked_up, self._versions)
            self._rows = rows
        return self._wanted
