"""kcat, unmodified, against `tidegate serve`."""

import subprocess

import pytest

LINES = "".join(f"line {number}\n" for number in range(100))


def run(kcat, broker, *arguments, stdin=""):
    """Run kcat to its end and return what it printed."""
    done = subprocess.run(
        [kcat, "-b", broker.address, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(kcat, broker, topic, codec):
    """`kcat -P` and `kcat -C` are a pipe."""
    run(kcat, broker, "-P", "-t", topic, "-p", "0", "-z", codec, stdin=LINES)
    assert run(kcat, broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == LINES


def test_the_listing_names_broker_and_topic(kcat, broker, topic):
    """`kcat -L` shows where to connect and what there is."""
    listing = run(kcat, broker, "-L")
    assert f"at {broker.address}" in listing
    assert f'topic "{topic}" with 1 partitions' in listing
