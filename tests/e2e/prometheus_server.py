"""A real Prometheus server that scrapes given targets each second; `scripts/prometheus.sh` says where it is."""

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.ports import free_port

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 60.0
FETCH_TIMEOUT_S = 240.0

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
"""
_JOB = """\
scrape_configs:
  - job_name: {job}
    static_configs: [{{targets: [{targets}]}}]
"""


@contextlib.contextmanager
def prometheus(
    directory: Path, *targets: str, job: str = "kafka", rules: Path | None = None, scrapes: str = ""
) -> Iterator[str]:
    """Yield the URL of a server that scrapes `targets`, each HOST:PORT.

    rules: a file of alert rules. scrapes: `scrape_configs` to use instead.
    """
    found = subprocess.run(
        [ROOT / "scripts" / "prometheus.sh"],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    directory.mkdir(parents=True, exist_ok=True)
    config, url = directory / "prometheus.yml", f"http://127.0.0.1:{free_port()}"
    quoted = ", ".join(f'"{target}"' for target in targets)
    common = _CONFIG.format(rules="" if rules is None else f'"{rules}"')
    config.write_text(common + (scrapes or _JOB.format(targets=quoted, job=job)))
    command = [
        found.stdout.strip(),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        begun = time.monotonic()
        while not _is_ready(url):
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            assert time.monotonic() - begun < START_TIMEOUT_S
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
