"""The container image: built and run where a builder is at hand, else its steps are run in a directory.

Without a builder, each stage of the Dockerfile is a directory that stands for `/`: RUN commands, COPY and the start run
with their absolute paths below it, on this machine's Python and as this user.
"""

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.ports import free_port
from confluent_kafka import Consumer, Producer

ROOT = Path(__file__).parents[2]
BUILDERS = ("docker", "podman")
CONTEXT_BYTES_MAX = 16 << 20
BUILD_TIMEOUT_S = 280
HEALTH_TIMEOUT_S = 30
OWN_PATHS = re.compile(r"(?<![\w.])/(?:opt|etc|var/lib)/tidegate\b")


def instructions(text):
    """Return pairs of instruction and arguments of a Dockerfile without continued lines."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert not any(line.endswith("\\") for line in lines)
    return [tuple(line.split(maxsplit=1)) for line in lines]


STEPS = instructions((ROOT / "Dockerfile").read_text("utf-8"))


def of(name):
    """Return the arguments of an instruction that the last stage has once."""
    (found,) = [rest for step, rest in STEPS if step == name]
    return found


def context_files():
    """Return the files that .dockerignore lets into the build, relative to the repository; the last match decides."""
    rules = [
        line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"
    ]
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    dropped = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    assert sorted(rules) == sorted(["*", *(f"!{name}" for name in kept), *(f"**/{name}" for name in dropped)])
    return [
        path.relative_to(ROOT)
        for name in kept
        for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
        if path.is_file()
        and not any(
            fnmatch.fnmatch(part, pattern) for part in path.relative_to(ROOT).parts for pattern in dropped
        )
    ]


def builder():
    """Return a program that can build and run images here, or None."""
    for name in BUILDERS:
        if shutil.which(name):
            done = subprocess.run([name, "info"], capture_output=True, timeout=60, check=False)
            if done.returncode == 0 and b"Cannot connect" not in done.stderr:
                return name
    return None


class Stage:
    """A stage of the build: a directory that stands for `/`, a working directory and variables."""

    def __init__(self, root, context):
        self.root, self.context = root, context
        self.directory = root
        self.env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.env["PATH"] = f"{root / 'python'}:{os.environ['PATH']}"
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)
        (root / "python").mkdir(parents=True)
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        (root / "python" / "python").symlink_to(base)

    def here(self, text):
        """Return a text with the image's paths below this directory."""
        return OWN_PATHS.sub(lambda match: f"{self.root}{match[0]}", text)

    def run(self, command):
        """Run a RUN command; its user is this one, where that is not root."""
        if os.geteuid():
            command = command.replace("-o 10001 -g 10001", "")
        done = subprocess.run(
            ["sh", "-e", "-c", self.here(command)],
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def copy(self, arguments, stages):
        """Copy files of the build's context, or a directory of another stage."""
        *sources, target = arguments.split()
        if sources[0].startswith("--from="):
            source = stages[sources[0].removeprefix("--from=")].root / sources[1].lstrip("/")
            # The virtual environment names its own directory: here the copy is a link.
            path = self.root / target.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(source)
            return
        into = self.directory / target if target[0] != "/" else self.root / target.lstrip("/")
        for source in sources:
            path = self.context / source
            assert path.exists(), f"{source} is not in the context: .dockerignore leaves it out"
            if path.is_dir():
                shutil.copytree(path, into)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Return the last stage, with all steps run, where no builder is at hand; else the name of the image."""
    found = builder()
    if found:
        tag = f"tidegate-test:{os.getpid()}"
        build = [found, "build", "--tag", tag, str(ROOT)]
        done = subprocess.run(build, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        yield found, tag
        subprocess.run([found, "rmi", "--force", tag], capture_output=True, timeout=60, check=False)
        return
    directory = tmp_path_factory.mktemp("image")
    context = directory / "context"
    for path in context_files():
        (context / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, context / path)
    stages = {}
    for step, rest in STEPS:
        if step == "FROM":
            name = rest.partition(" AS ")[2]
            stage = stages[name] = Stage(directory / f"stage-{len(stages)}", context)
        elif step == "WORKDIR":
            stage.directory = stage.root / rest.lstrip("/")
            stage.directory.mkdir()
        elif step == "COPY":
            stage.copy(rest, stages)
        elif step == "RUN":
            stage.run(rest)
        elif step == "ENV":
            for name, value in (part.split("=", 1) for part in rest.split()):
                stage.env[name] = stage.here(value).replace("$PATH", stage.env["PATH"])
        else:
            assert step in ("USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"), step
    yield stage


@contextmanager
def running(image, directory):
    """Start the image on a free port with its own command; yield its address and a function that checks its health."""
    if isinstance(image, tuple):
        with running_container(*image) as found:
            yield found
        return
    settings = image.root / "etc/tidegate/server.properties"
    settings.write_text(image.here((ROOT / "container/server.properties").read_text("utf-8")))
    # What a user of the image sets, too: another port, and what clients are told.
    options = ["--override", "listeners=PLAINTEXT://0.0.0.0:0", "--override", "advertised.listeners="]
    command = [image.here(part) for part in json.loads(of("ENTRYPOINT"))]
    command[0] = shutil.which(command[0], path=image.env["PATH"])
    assert Path(command[0]).is_relative_to(image.root)
    ports = directory / "ports"
    process = subprocess.Popen(
        [*command, *options, "--port-file", str(ports)],
        cwd=directory,
        env=image.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "listening on" in (line := process.stderr.readline()), line + process.stderr.read()
        address = f"127.0.0.1:{ports.read_text().strip()}"
        yield address, lambda: health(image, [address])
    finally:
        process.terminate()
        _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "hint" not in log, log


def health(image, arguments):
    """Return the exit code of the health check and what it prints."""
    command = [image.here(part) for part in json.loads(of("HEALTHCHECK").partition("CMD ")[2])]
    done = subprocess.run(
        [*command, *arguments], env=image.env, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr


@contextmanager
def running_container(program, tag):
    """Start a container with a published port."""
    port = free_port()
    options = ["--detach", "--rm", "--publish", f"127.0.0.1:{port}:9092"]
    told = ["--override", f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"]
    container = output(program, "run", *options, tag, *told).strip()
    check = [program, "exec", container, *json.loads(of("HEALTHCHECK").partition("CMD ")[2])]

    def is_healthy():
        done = subprocess.run(check, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stderr

    try:
        deadline = time.monotonic() + HEALTH_TIMEOUT_S
        while is_healthy()[0] != 0:
            assert time.monotonic() < deadline, output(program, "logs", container)
            time.sleep(0.1)
        assert output(program, "exec", container, "id", "-u").strip() == "10001"
        yield f"127.0.0.1:{port}", is_healthy
    finally:
        output(program, "stop", container)


def output(*command):
    """Return what a command prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_clients_use_the_broker_of_the_image(image, tmp_path):
    """What the image starts serves clients, is healthy, and stops at SIGTERM with exit code 0."""
    with running(image, tmp_path) as (address, is_healthy):
        assert is_healthy() == (0, "")
        producer = Producer({"bootstrap.servers": address})
        producer.produce("orders", b"one coffee")
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        assert consumer.poll(30).value() == b"one coffee"
        consumer.close()
    if not isinstance(image, tuple):  # a container that has ended runs no check
        code, reason = is_healthy()
        assert code == 1
        assert reason.startswith("no broker at")


def test_the_image_holds_the_base_installation(image):
    """Neither pip nor a package of the extras is in it."""
    program = "import importlib.metadata as m; print(*sorted(d.metadata['Name'].lower() for d in m.distributions()))"
    if isinstance(image, tuple):
        found = output(image[0], "run", "--rm", "--entrypoint", "python", image[1], "-c", program).split()
    else:
        python = image.root / "opt/tidegate/bin/python"
        found = subprocess.run(
            [str(python), "-c", program], env=image.env, capture_output=True, text=True, check=True
        ).stdout.split()
    assert {"tidegate", "crc32c", "pyyaml"} <= set(found)
    assert set(found) & {"pip", "setuptools", "wheel", "pyarrow", "pyspark", "pytest"} == set()


def test_the_image_is_as_the_docs_say():
    """It runs as a user without rights, with the data in a volume, and its port is that of the settings."""
    assert of("USER") == "10001:10001"
    assert of("VOLUME") == "/var/lib/tidegate"
    settings = (ROOT / "container/server.properties").read_text("utf-8")
    assert f"log.dirs={of('VOLUME')}" in settings
    assert f"listeners=PLAINTEXT://0.0.0.0:{of('EXPOSE')}" in settings
    last = max(at for at, (step, _) in enumerate(STEPS) if step == "FROM")
    made = [rest for step, rest in STEPS[last:] if step == "RUN" and of("VOLUME") in rest]
    assert made == ["install -d -m 0700 -o 10001 -g 10001 /var/lib/tidegate"]


def test_the_context_is_small():
    """The builder gets sources and pins, and no file of a working copy that changes from run to run."""
    files = context_files()
    assert sum((ROOT / path).stat().st_size for path in files) < CONTEXT_BYTES_MAX
    assert not [path for path in files if path.suffix == ".pyc" or ".egg-info" in str(path)]


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\5", b"\x7f\xff\xff\xff", b"\0\0\0\6\0\0\0\1\0\x23", b"HTTP/1.1 400"]
)
def test_the_health_check_believes_no_other_server(answer):
    """A closed connection, a short or huge answer, an error, and another protocol are no broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, str(ROOT / "container/healthcheck.py"), address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        thread.join()
    assert done.returncode == 1
    assert done.stderr.startswith(f"no broker at {address}: ")
    assert "Traceback" not in done.stderr
