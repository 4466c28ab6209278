"""What is missing, for programs."""

from tidegate.pipeline.manifest import MOST_LISTED
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.report.missing_report import missing_document


def test_a_document_of_many_holes_has_an_end():
    """The first of them, and their number."""
    many = [
        Missing(node_id=1, seq=seq, ts_ms=0, reason="missing rows", lost_events=None)
        for seq in range(2 * MOST_LISTED)
    ]
    document = missing_document(many)
    assert document["missing_in_all"] == 2 * MOST_LISTED
    assert [place["seq"] for place in document["missing"]] == list(range(MOST_LISTED))
