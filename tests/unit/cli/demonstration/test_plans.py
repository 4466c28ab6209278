"""The quota files that the demo writes are such as a user could have written."""

from tidegate.cli.demonstration.plans import QUOTAS, RATE_LIMITS, write_plans


def test_the_limits_shown_are_the_quotas_set():
    """What the board calls the limit is what goes over the wire."""
    assert {client: [limit] for client, limit in RATE_LIMITS.items()} == {
        client: list(values.values()) for client, values in QUOTAS.items()
    }


def test_each_plan_is_written_under_its_name(tmp_path):
    """One file a plan."""
    paths = write_plans(tmp_path)
    assert {name: path.name for name, path in paths.items()} == {
        "generous": "generous.yaml",
        "one-for-all": "one-for-all.yaml",
    }
    assert all(path.read_text(encoding="utf-8") for path in paths.values())
