"""The example of docs/callbacks.md is a callback, and does what the page says."""

import re
from pathlib import Path

import pytest

from tidegate.quota import QuotaEntity, QuotaManagers
from tidegate.server.callback.callback_guard import load_callback

PAGE = Path(__file__).parents[3] / "docs/callbacks.md"


def test_the_example_shares_a_quota_among_a_tenants_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored quota of a user of the tenant's name is all of theirs."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "tenants.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    callback = load_callback("tenants:Tenants", {"client.quota.callback.otherwise": "5"}, lambda: 0)
    managers = QuotaManagers(callback=callback)
    managers.produce.update_quota(QuotaEntity(user="acme"), 100.0)
    assert managers.produce.bound("acme-web", "c") == managers.produce.bound("acme-etl", "c") == 100.0
    assert managers.produce.record("acme-web", "c", 2000.0, 0) > 0
    assert managers.produce.record("acme-etl", "c", 1.0, 0) > 0
    managers.produce.update_quota(QuotaEntity(user="acme"), None)
    assert managers.produce.bound("acme-web", "c") == 5.0
    assert managers.request.bound("acme-web", "c") > 1e18
    assert callback.failures == 0
