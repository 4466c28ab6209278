"""`tidegate.pipeline.recommend_from_prometheus`: quotas out of a saved answer of Prometheus."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate import pipeline
from tidegate.cli.main import main
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.errors import TidegateError

_ANSWER = Path(__file__).parents[2] / "vectors" / "prometheus" / "jmx-exporter.json"
_BASE = """\
import sys
from tidegate import pipeline
found = pipeline.recommend_from_prometheus(sys.argv[1], force=True)
assert found.quotas.entries
print(sorted({"pyspark", "pandas", "pyarrow", "numpy", "numba"} & {*sys.modules}))
"""


def test_it_returns_what_the_command_prints(capsys):
    """The text is the one of `tidegate recommend --prometheus`."""
    found = pipeline.recommend_from_prometheus(_ANSWER, force=True, headroom=2)
    assert main(["recommend", "--prometheus", str(_ANSWER), "--force", "--headroom", "2"]) == 0
    assert found.text() == capsys.readouterr().out
    assert parse_quotas_file(found.text()).entries == found.quotas.entries
    assert found.document()["by"] == found.by
    assert found.notes()
    assert "kafka-configs.sh" in found.text("kafka-configs")


def test_the_base_installation_is_enough():
    """No arrays and no Spark are loaded."""
    command = [sys.executable, "-c", _BASE, str(_ANSWER)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": []}, "sources must be a URL or a path"),
        ({"sources": 3}, "sources must be a path or URI"),
        ({"sources": "missing.json"}, "cannot read 'missing.json'"),
        ({"sources": ["http://h:1", "b.json"]}, "is given with another source"),
        ({"sources": "http://user:secret@h:1"}, "must not contain a user or password"),
        ({"match": "a='b'"}, "^match is for the URL of a server"),
        ({"basic_auth_file": "secret"}, "^basic_auth_file is for the URL of a server"),
        ({"last": "1h"}, "^last is for a server, not for a saved answer"),
        ({"by": "users"}, "by must be both, user"),
        ({"headroom": 0.5}, "headroom must be a number from 1"),
        ({"budgets": {"produce": 1e3}}, "budgets has the unknown key 'produce'"),
        ({"protect": None}, "protect must be pairs"),
        ({"sources": "http://h:1", "match": 3}, "match must be a text"),
        ({"start": datetime(2026, 1, 1)}, "start must have a time zone"),
        ({"start": datetime(2100, 1, 1, tzinfo=UTC)}, "no metrics of Kafka's clients"),
    ],
)
def test_what_cannot_be_used_is_named(options, message):
    """Every wrong argument is one error that names it."""
    with pytest.raises(TidegateError, match=message):
        pipeline.recommend_from_prometheus(**{"sources": _ANSWER, "force": True, **options})
