"""Filesystems by URI: what is said where one cannot be opened."""

import time

import pytest

from tidegate.config.locations import location
from tidegate.pipeline.errors import FilesystemError
from tidegate.pipeline.read.filesystems import hint_of, place_of

_NO_HADOOP = "needs Hadoop's libhdfs and Java: set HADOOP_HOME, JAVA_HOME and CLASSPATH, or use webhdfs://"
_NO_FSSPEC = "needs fsspec, and a library that fsspec names; install it, also for executors"


@pytest.fixture
def no_clients(monkeypatch):
    """No Hadoop, and no account with anybody but on loopback, where nobody answers."""
    for name in (
        "HADOOP_HOME",
        "ARROW_LIBHDFS_DIR",
        "CLASSPATH",
        "JAVA_HOME",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("hdfs://127.0.0.1:9/usage", f"hdfs:// {_NO_HADOOP}"),
        ("viewfs://cluster/usage", f"viewfs:// {_NO_HADOOP}"),
        ("hdfs://127.0.0.1:10/usage", f"hdfs:// {_NO_HADOOP}"),  # who tries again is told something else
        ("webhdfs://127.0.0.1:9/usage", f"webhdfs:// {_NO_FSSPEC}"),
        ("sftp://127.0.0.1/usage", f"sftp:// {_NO_FSSPEC}"),
        ("nonsense://127.0.0.1/usage", f"nonsense:// {_NO_FSSPEC}"),
        (
            "gs://bucket/usage?scheme=http&endpoint_override=127.0.0.1%3A9&retry_limit_seconds=1",
            "set the credentials in the environment of each process; see docs/clusters.md",
        ),
    ],
)
def test_what_is_missing_is_named(no_clients, uri, hint):
    """In one line, in seconds, with the URI."""
    began = time.monotonic()
    with pytest.raises(FilesystemError) as caught:
        place_of(location(uri)).info()
    assert str(caught.value).startswith(f"cannot use {uri!r}: ")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.hint == hint
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("uri", "said", "hint"),
    [
        (
            "abfs://container@account.dfs.core.windows.net/usage",
            "Check for Hierarchical Namespace support on '...' failed: Failed to get token from DefaultAzureCredential",
            "set the credentials in the environment of each process; see docs/clusters.md",
        ),
        (
            "s3://bucket/usage",
            "When getting information for key 'usage' in bucket 'bucket': AWS Error ACCESS_DENIED during HeadObject",
            "set the credentials in the environment of each process; see docs/clusters.md",
        ),
        (
            "gs://bucket/usage",
            "Got GCS URI but Arrow compiled without GCS support",
            "this pyarrow was built without gs://; install pyarrow from PyPI, which supports it",
        ),
        ("s3://bucket/usage", "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", None),
    ],
)
def test_what_clients_say_has_a_hint(uri, said, hint):
    """Where it is known what helps."""
    assert hint_of(location(uri), OSError(said)) == hint
