"""Node ids of the processes of a gateway that serve one broker: each has a usage record of its own.

Jobs read the rows of all processes as one node, the broker (`tidegate.pipeline.read.columns`).

>>> node_of_process(7, 1), node_of_process(7, 2), process_of_node(1_073_742_274), process_of_node(7)
(1073742273, 1073742274, (7, 2), None)
"""

__all__ = ["ALL_PROCESSES", "MAX_BROKER_ID", "broker_of_node", "node_of_process", "process_of_node"]

ALL_PROCESSES = 0
"""Number for all processes of a broker together. No single process has it."""
FIRST_NODE = 1 << 30
_BITS = 6
MAX_BROKER_ID = (FIRST_NODE >> _BITS) - 1


def node_of_process(broker_id: int, process: int) -> int:
    """Return the node id of a process, which is counted from 1, or of all together (`ALL_PROCESSES`)."""
    assert 0 <= broker_id <= MAX_BROKER_ID
    assert 0 <= process < 1 << _BITS
    return FIRST_NODE + (broker_id << _BITS) + process


def process_of_node(node_id: int) -> tuple[int, int] | None:
    """Return the broker and the number of the process that has a node id; None: it is the id of a broker."""
    return None if node_id < FIRST_NODE else divmod(node_id - FIRST_NODE, 1 << _BITS)


def broker_of_node(node_id: int) -> int:
    """Return the node id that jobs show for a row: for a process the id of its broker, for a broker its own.

    >>> broker_of_node(node_of_process(7, 2)), broker_of_node(7)
    (7, 7)
    """
    found = process_of_node(node_id)
    return node_id if found is None else found[0]
