"""Files that are removed while a broker runs: producers are told, and the next start does not begin empty."""

import shutil
import subprocess
import sys
import time

from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import PlainClient

from tidegate.error_codes import KAFKA_STORAGE_ERROR

NOTICED_WITHIN_S = 1.0
STARTED_WITHIN_S = 30


def produced(client, topic):
    """Produce one record; return the error code."""
    client.send_produce(topic, value_bytes=100)
    return client.receive_produce().responses[0].partition_responses[0].error_code


def test_removed_partition_takes_nothing_more_and_is_refused_at_the_start(new_broker, create_topic):
    """Acknowledgements end within a second, other topics go on, and the next start says what is missing."""
    broker = new_broker()
    lost, other = create_topic(broker, "lost"), create_topic(broker, "other")
    with PlainClient(broker.port, "producer") as client:
        assert (produced(client, lost), produced(client, other)) == (0, 0)
        shutil.rmtree(broker.data_dir / f"{lost}-0")
        with Lateness() as lateness:
            begun_s = time.monotonic()
            time.sleep(NOTICED_WITHIN_S)
            time.sleep(lateness.ms_since(begun_s) / 1000)
        assert (produced(client, lost), produced(client, other)) == (KAFKA_STORAGE_ERROR, 0)
    assert broker.log.count(f"{lost}-0 is damaged: ") == 1
    assert broker.stop() == 0
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--data", str(broker.data_dir)],
        capture_output=True,
        text=True,
        timeout=STARTED_WITHIN_S,
        check=False,
    )
    assert done.returncode == 2
    assert str(broker.data_dir / f"{lost}-0") in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in broker.log + done.stderr
