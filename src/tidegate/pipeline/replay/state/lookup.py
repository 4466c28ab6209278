"""The account and the sensor under which each client is counted, by quota type.

The kernel sees arrays only. Names become numbers here: a client's account under a quota type is looked up by the
engine's own rules when its first row comes, and again when the definitions of that type have changed since. In place of
the definitions, a quota callback may say where a client is counted.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    CHARGE_BITS,
    EXACT,
    EXEMPT,
    FETCH_CHARGE,
    KIND_BITS,
    MISSING_ROWS,
    MUTATION,
    MUTATION_ROW,
    PRODUCE_CHARGE,
    REQUEST,
    Int16s,
    Int32s,
    Int64s,
    Rows,
)
from tidegate.pipeline.read.answers import Answer, Answers
from tidegate.pipeline.replay.kernel.open_loop import wanted_kernel
from tidegate.pipeline.replay.levels import FETCH_ANSWER_BYTES
from tidegate.pipeline.replay.names import ClientNames, columns_of
from tidegate.pipeline.replay.plan import (
    INDEX_BY_KEY,
    QUOTA_TYPES,
    Definitions,
    Plan,
    resolved_answer,
)
from tidegate.pipeline.replay.resolved import ResolvedColumns
from tidegate.pipeline.replay.state.accounts import AccountTable, Found
from tidegate.pipeline.replay.state.keys import Clients
from tidegate.pipeline.replay.state.sensors import Sensors
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.measure.smooth import smooth_max_value
from tidegate.quota.measure.throttle import MAX_INT64, UNLIMITED, saturate_to_int32

__all__ = ["Lookup", "SharedWanted", "Wanted", "wanted_of"]


class Wanted(NamedTuple):
    """Accounts to look up, and how many rows ask for permits.

    clients: by the place in `QUOTA_TYPES`, the numbers of some clients, rising.
    """

    clients: Mapping[int, Clients]
    mutations: int


def wanted_of(flags: Int16s, client: Int32s, looked_up: Int64s, versions: Int64s) -> Wanted:
    """Return what rows need; see `open_loop.find_wanted`."""
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


class Lookup:
    """The accounts of the clients of one plan on one node.

    account_of: rows of `accounts`, by quota type and client. reason: why the quotas are not known; `EXACT`: they are.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        sensors: Sensors,
        definitions: Definitions | None,
        wanted: SharedWanted | None,
        reason: int,
    ) -> None:
        self.definitions = definitions or Definitions.of(plan)
        self.wanted = None if plan.is_in_force else wanted
        self.reason = reason
        self.asks_callback = False
        self.accounts = AccountTable()
        self.account_of = np.zeros((len(QUOTA_TYPES), len(names)), np.int32)
        self._names = names
        self._sensors = sensors
        self._is_in_force = plan.is_in_force
        self._looked_up = np.zeros((len(QUOTA_TYPES), len(names)), np.int64)
        self._versions = [1] * len(QUOTA_TYPES)
        self._answers = Answers()
        self._uncertain: set[tuple[int, int]] = set()

    def add_clients(self) -> None:
        """Make room for clients that were added to the names."""
        more = ((0, 0), (0, len(self._names) - self.account_of.shape[1]))
        self.account_of = np.pad(self.account_of, more)
        self._looked_up = np.pad(self._looked_up, more)

    def open_accounts(self, rows: Rows, first: int, end: int) -> int:
        """Look up the accounts that rows need; return how many of these ask for permits."""
        # Plans share what a whole batch needs. A part of a batch, cut by a step, is looked through by this plan alone.
        if self.wanted is not None and end - first == len(rows.seq):
            wanted = self.wanted.of(rows)
        else:
            versions = np.array(self._versions, np.int64)
            wanted = wanted_of(rows.flags[first:end], rows.client[first:end], self._looked_up, versions)
        if wanted.clients:
            self._note_likely(wanted.clients.keys())
        for index, clients in wanted.clients.items():
            self.look_up(index, clients)
        return wanted.mutations

    def _note_likely(self, types: Set[int]) -> None:
        """Note how many accounts and sensors there will be if all clients need those of these quota types."""
        clients, sensors = len(self._names), self._sensors
        self.accounts.likely = max(self.accounts.likely, clients * len(types))
        sensors.rates.likely = max(sensors.rates.likely, clients * len(types - {MUTATION}))

    def look_up(self, index: int, clients: Clients) -> None:
        """Find the accounts and sensors of clients under the definitions as they are now."""
        sensors = self._sensors
        found = self._resolved(index, clients)
        bounds = found.bounds
        opened, are_smooth = sensors.open(index, clients, found)
        caps_bytes = np.full(len(opened), MAX_INT64)  # what was recorded had its cap
        if not self._is_in_force:
            caps_bytes = found.caps_bytes
            capped = caps_bytes != MAX_INT64
            caps_bytes[capped] += FETCH_ANSWER_BYTES
            for place in np.flatnonzero(capped & are_smooth).tolist():
                caps_bytes[place] = (
                    saturate_to_int32(smooth_max_value(bounds[place].item())) + FETCH_ANSWER_BYTES
                )
        are_cluster_wide = (bounds != UNLIMITED) & sensors.beyond.are_cluster_wide(index, found)
        before = self.account_of[index, clients]
        are_known = self._are_known(index, clients, found)
        rows = self.accounts.rows_for(index, clients, found, before=before, are_known=are_known)
        self.accounts.lead(
            rows, Found(opened, bounds, caps_bytes, are_cluster_wide), cap_ms=self.cap_ms(index)
        )
        self.account_of[index, clients] = rows
        self._looked_up[index, clients] = self._versions[index]

    def cap_ms(self, index: int) -> int:
        """Return the longest throttle time of a quota type (B§2.1)."""
        return self._sensors.windows.rate.window_ms if index == REQUEST else MAX_INT64

    def _are_known(self, index: int, clients: Clients, found: ResolvedColumns) -> list[bool]:
        """Return which rows of `found` are known to limit their clients; without a callback all are, or none."""
        are_known = [self.reason == EXACT] * len(found.rows)
        if self._uncertain:
            for place, client in zip(found.row.tolist(), clients.tolist(), strict=True):
                are_known[place] &= (index, client) not in self._uncertain
        return are_known

    def _resolved(self, index: int, clients: Clients) -> ResolvedColumns:
        """Return where each client is counted, by the definitions or as the callback said."""
        users, client_ids = columns_of(self._names, clients)
        if not self.asks_callback:
            return self.definitions.resolved(index, users, client_ids, self._sensors.windows)
        found = []
        for client, *names in zip(clients.tolist(), users.to_pylist(), client_ids.to_pylist(), strict=True):
            of_client = QUOTA_TYPES[index].key, *names
            if self._answers.is_certain(*of_client):
                self._uncertain.discard((index, client))
            else:
                self._uncertain.add((index, client))
            found.append(resolved_answer(self._answers.last_answer(*of_client), *names))
        return ResolvedColumns.of(users, client_ids, found)

    def is_enabled(self, index: int) -> bool:
        """Return whether there may be a quota of the type."""
        return self.asks_callback or self.definitions.is_enabled(index)

    # --- changes of the quotas in force ---------------------------------------------------------------------------

    def look_up_again(self) -> None:
        """Look up each client again when its next row comes."""
        self.wanted = None  # it does not tell what is looked up again
        self._versions = [version + 1 for version in self._versions]

    def clear(self) -> None:
        """Remove all definitions: all are stated anew."""
        self.definitions.clear()
        self.look_up_again()

    def clear_cluster_wide(self) -> None:
        """Make every quota one of each broker: which are cluster-wide is stated anew."""
        if self._sensors.beyond.clear_cluster_wide():
            self.look_up_again()

    def apply(self, record: QuotaRecord) -> None:
        """Apply a changed definition or setting."""
        if self._sensors.beyond.apply(record):
            self.look_up_again()
        elif (changed := self.definitions.apply(record)) is not None:
            self._versions[changed] += 1

    def lose(self, reason: int) -> None:
        """Mark the quotas as not known, or known if the reason is `EXACT`; answers of a callback may be missing."""
        self.reason = reason
        self._answers.lose()
        self.look_up_again()

    # --- answers of a quota callback ------------------------------------------------------------------------------

    def exchange_callback(self, *, asks_callback: bool) -> None:
        """Follow another callback, or Kafka's own rules."""
        self.forget_answers()
        self.asks_callback = asks_callback
        self.look_up_again()

    def take_answer(self, answer: Answer) -> None:
        """Count a client as a callback said."""
        if not self.asks_callback:  # the row that says so is not there, so window settings may not be either
            self.asks_callback = True
            self.reason = self.reason or MISSING_ROWS
            self.look_up_again()
        if self._answers.store_answer(answer):
            self._versions[INDEX_BY_KEY[answer.quota_key]] += 1

    def forget_answers(self) -> None:
        """Remove all answers; no callback is in use."""
        self._answers.forget()
        self.asks_callback = False
        self._uncertain.clear()

    def certain_from(self, rows: Rows, first: int, end: int) -> int:
        """Return the row from which on it is certain where the clients are counted, `first` to `end`.

        A client without an answer may have been counted in any sensor.
        """
        if not self._uncertain:
            return first
        uncertain = np.zeros(end - first, bool)
        for index, needed in enumerate(_needed(rows.flags[first:end])):
            clients = [client for quota_type, client in self._uncertain if quota_type == index]
            uncertain |= needed & np.isin(rows.client[first:end], clients)
        places = np.flatnonzero(uncertain)
        return first + int(places[-1]) + 1 if len(places) else first


def _needed(flags: Int16s) -> tuple[npt.NDArray[np.bool_], ...]:
    """Return for each quota type, in the order of `QUOTA_TYPES`, which rows may be charged to it."""
    is_mutation = (flags & KIND_BITS) == MUTATION_ROW
    charge = flags & CHARGE_BITS
    is_timed = ~is_mutation & ((flags & EXEMPT) == 0)
    return charge == PRODUCE_CHARGE, charge == FETCH_CHARGE, is_timed, is_mutation
