"""Spark's classes are kept for the next start: by a real Java, which never fails for them."""

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from tidegate.pipeline.spark.java import KEPT, ClassArchive, require_java

_SETTING = "spark.driver.extraJavaOptions"
_FROM_ARCHIVE = "shared objects file (top)"


def _archive(cache):
    return ClassArchive(require_java(), os.environ | {"XDG_CACHE_HOME": str(cache)})


def _run(archive):
    """Run a small program out of Spark's jars with the options, and return which classes it loads from where."""
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    options = archive.in_settings({}).get(_SETTING, "").split()
    program = "org.apache.hadoop.util.VersionInfo"
    command = ["java", "-cp", str(jars), *options, "-Xlog:class+load", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    archive.install()
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cache directory with an archive in it, and the archive's file."""
    cache = tmp_path_factory.mktemp("cache")
    directory = cache / "tidegate" / "spark-classes"
    for archives in (0, 1):
        assert _FROM_ARCHIVE not in _run(_archive(cache))
        assert len([*directory.glob("*.jsa")]) == archives
    (path,) = directory.glob("*.jsa")
    return cache, path


def test_it_is_made_once_and_used(made):
    """Made by the second Java, used by the third, and there for its owner alone."""
    cache, path = made
    assert path.stat().st_mode & 0o777 == 0o400
    assert path.parent.stat().st_mode & 0o777 == 0o700
    before = path.stat().st_ino
    archive = _archive(cache)
    assert _FROM_ARCHIVE in _run(archive)
    assert not archive.is_made
    assert [each.stat().st_ino for each in path.parent.glob("*.jsa")] == [before]


@pytest.mark.parametrize("damage", ["cut", "changed", "nonsense", "empty"])
def test_a_damaged_one_is_not_used(made, tmp_path, damage):
    """Java, which would crash, starts as without it, and another is made."""
    whole = made[1].read_bytes()
    middle = len(whole) // 2
    changed = (
        whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 4096]) + whole[middle + 4096 :]
    )
    data = {"cut": whole[:middle], "changed": changed, "nonsense": b"x" * 10_000, "empty": b""}[damage]
    path = tmp_path / "tidegate" / "spark-classes" / made[1].name
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert _FROM_ARCHIVE not in _run(_archive(tmp_path))
    assert not path.exists() or path.read_bytes() != data


def test_a_cache_that_cannot_be_written_is_none(tmp_path):
    """Nothing is made, nothing fails; likewise where Spark would misread the path."""
    (tmp_path / "file").write_text("no directory")
    for cache in (tmp_path / "file", Path("/proc/none"), tmp_path / 'a "b'):
        archive = _archive(cache)
        assert archive.in_settings({"a": "b"}) == {"a": "b"}
        archive.install()
        archive.give_up()


def test_few_are_kept(tmp_path):
    """Those used last; and nothing of a Java that was killed."""
    directory = tmp_path / "tidegate" / "spark-classes"
    directory.mkdir(parents=True)
    for number in range(5):
        for name in (f"old-{number}.jsa", f"old-{number}.part"):
            (directory / name).write_bytes(b"x")
            os.utime(directory / name, (number, number))
    _archive(tmp_path).in_settings({})
    archive = _archive(tmp_path)
    settings = archive.in_settings({_SETTING: "-Da=b"})[_SETTING].split()
    assert settings[0] == "-Da=b"
    being_made = Path(settings[-1].partition("=")[2])
    being_made.write_bytes(b"made")
    archive.install()
    assert not [*directory.glob("*.part")]
    names = sorted(path.name for path in directory.glob("*.jsa"))
    assert len(names) == KEPT
    assert names[-1] == "old-4.jsa"
    assert (directory / names[0]).read_bytes() == b"made"


def test_one_at_a_time_makes_it_and_who_gives_up_is_not_followed_at_once(tmp_path):
    """On a busy machine it takes a minute: not with each start again."""
    first, second, third = (_archive(tmp_path) for _ in range(3))
    assert first.in_settings({}) == {}, "it leaves a mark"
    assert second.in_settings({}) != {}
    assert third.in_settings({}) == {}
    second.give_up()
    assert third.in_settings({}) == {}
    (part,) = (tmp_path / "tidegate" / "spark-classes").glob("*.part")
    assert part.stat().st_size == 0
    os.utime(part, (0, 0))
    assert third.in_settings({}) != {}
