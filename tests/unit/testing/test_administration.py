"""Quotas as tests write them."""

import pytest

from tidegate.errors import ConfigError
from tidegate.testing.administration import read_quotas


def test_a_dict_is_an_entry_of_the_file():
    """Names, defaults, sizes and fractions are read as in quotas.yaml."""
    found = read_quotas(
        [
            {"client-id": None, "consumer_byte_rate": "1.5MiB"},
            {"user": 'ü "x" \'\\ \n\t\U0001f980', "client-id": {"name": "a"}, "request_percentage": 12.5},
            {"ip": "192.0.2.7", "connection_creation_rate": 3},
        ]
    )
    assert [(dict(entry.entity), dict(entry.values)) for entry in found.entries] == [
        ({"client-id": None}, {"consumer_byte_rate": 1.5 * 1024 * 1024}),
        ({"user": 'ü "x" \'\\ \n\t\U0001f980', "client-id": "a"}, {"request_percentage": 12.5}),
        ({"ip": "192.0.2.7"}, {"connection_creation_rate": 3.0}),
    ]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ({"client-id": "a", "producer_byte_rate": -1}, "producer_byte_rate"),
        ({"client-id": "a", "producer_byte_rate": float("nan")}, "producer_byte_rate"),
        ({"client_id": "a", "producer_byte_rate": 1}, "client_id"),
        ({"client-id": "a"}, "no quota is set"),
        ({"client-id": b"a", "producer_byte_rate": 1}, "bytes"),
    ],
)
def test_mistakes_are_named(quota, expected):
    """A quota that cannot be meant is refused, with what is wrong and a hint."""
    with pytest.raises(ConfigError, match=expected) as caught:
        read_quotas([quota])
    assert caught.value.hint


def test_the_keys_of_a_file_are_not_entries():
    """What stands in a `quotas.yaml` around the entries is refused with the shape that is expected."""
    with pytest.raises(ConfigError, match="quotas cannot be read") as caught:
        read_quotas({"quotas": [{"client-id": "a", "producer_byte_rate": 1}]})
    assert caught.value.hint


def test_a_file_is_read(tmp_path):
    """A path is that of a quotas.yaml; its groups need settings of the broker."""
    path = tmp_path / "quotas.yaml"
    path.write_text("quotas:\n  - user: {name: alice}\n    producer_byte_rate: 1KiB\n")
    assert read_quotas(path).entries == read_quotas(str(path)).entries
    assert read_quotas(path).entries[0].values == {"producer_byte_rate": 1024.0}
    group = "groups:\n  - name: g\n    members: [{user: {name: alice}}]\n    producer_byte_rate: 1\n"
    path.write_text(group + "quotas: []\n")
    with pytest.raises(ConfigError, match="groups"):
        read_quotas(path)
