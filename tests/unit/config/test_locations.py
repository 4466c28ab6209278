"""Paths and URIs as users write them; a secret goes nowhere."""

from pathlib import Path

import pytest

from tidegate.config.locations import Uri, location
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("usage", "usage"),
        ("file:///var/my%20usage", "/var/my usage"),
        ("file://localhost/var/usage", "/var/usage"),
        ("C:/usage", "C:/usage"),
        ("s3:/bucket", "s3:/bucket"),
    ],
)
def test_paths(text: str, path: str) -> None:
    """What has no scheme, or `file:`, is on this machine."""
    assert location(text) == Path(path)


def test_uris() -> None:
    """A URI comes back as it was written, but for slashes at its end; names in it stand before its query."""
    uri = location("hdfs://head:8020/usage/?user=me")
    assert isinstance(uri, Uri)
    assert str(uri) == "hdfs://head:8020/usage?user=me"
    assert str(uri / "date=2026-11-22" / "odd #1.parquet") == (
        "hdfs://head:8020/usage/date=2026-11-22/odd%20%231.parquet?user=me"
    )
    assert str(location("s3://bucket") / "usage") == "s3://bucket/usage"
    assert str(location("abfs://container@account/usage")) == "abfs://container@account/usage"


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA:s3cret@bucket/usage",
        "s3://s3cret@bucket/usage",
        "abfs://container:s3cret@account/usage",
        "s3://bucket/usage?secret_key=s3cret",
        "s3://bucket/usage?token&key=s3cret",
        "gs://bucket/usage#s3cret",
        "s3://bucket/usage?s3cret",
        "http://[s3cret/usage",
        "s3://bucket/a s3cret",
    ],
)
def test_what_may_hold_a_secret_is_refused(text: str) -> None:
    """And nothing of the secret is said."""
    with pytest.raises(ConfigError) as caught:
        location(text)
    assert "s3cret" not in f"{caught.value}".replace("'s3cret' of", "")


def test_a_file_uri_of_another_machine_is_refused() -> None:
    """`file:` has no host."""
    with pytest.raises(ConfigError, match="no host"):
        location("file://elsewhere/usage")
