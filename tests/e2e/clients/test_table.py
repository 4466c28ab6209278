"""The table of clients in the documents is of the versions that the tests install."""

from tests.e2e.clients.kafka_tools import TOOLS
from tests.e2e.clients.programs import CLIENTS
from tests.e2e.clients.table import DOCUMENT, rows_of
from tests.e2e.clients.versions import PINNED

OF_THE_SYSTEM = {"kcat"}


def test_the_table_has_every_client_in_its_version() -> None:
    """Whoever moves a pin on runs `scripts/client_table.py --run`; kcat is the system's, in whatever version."""
    found = rows_of(DOCUMENT.read_text(encoding="utf-8"))
    pinned = {name: client.version for name, client in CLIENTS.items() if name not in OF_THE_SYSTEM}
    assert found == pinned | {name: found.get(name) for name in OF_THE_SYSTEM} | dict.fromkeys(
        TOOLS, PINNED["kafka"]()
    )
    assert all(found[name] for name in OF_THE_SYSTEM)
