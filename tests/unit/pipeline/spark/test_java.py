"""Finding Java, with little programs that answer as Java does."""

import pytest

from tidegate.pipeline.errors import MissingJavaError
from tidegate.pipeline.spark.java import java_major, require_java


def _java(tmp_path, answer):
    command = tmp_path / "bin" / "java"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    command.chmod(0o755)
    return {"JAVA_HOME": str(tmp_path)}


def test_java_home_is_asked_for_its_version(tmp_path):
    """The Java in JAVA_HOME is the one that counts."""
    assert require_java(_java(tmp_path, 'openjdk version "21.0.2" 2024-01-16')).startswith(
        'openjdk version "21.0.2"'
    )


def test_java_on_the_path_is_found(tmp_path):
    """Without JAVA_HOME the path is searched."""
    _java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    assert java_major(require_java({"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"})) == 17


def test_old_java_is_refused(tmp_path):
    """Java 11 is named, with what is needed and how to get it."""
    environ = _java(tmp_path, 'openjdk version "11.0.22" 2024-01-16')
    with pytest.raises(
        MissingJavaError, match=r"^Spark needs Java 17 or later, '.*/bin/java' is Java 11$"
    ) as caught:
        require_java(environ)
    assert caught.value.hint.startswith("install Java 17 or later")


def test_no_java_is_one_clear_error(tmp_path):
    """Nothing on the path is said before Spark fails on it."""
    with pytest.raises(MissingJavaError, match="PATH contains no java"):
        require_java({"PATH": str(tmp_path)})


def test_java_home_without_java_is_one_clear_error(tmp_path):
    """A JAVA_HOME that points nowhere is named."""
    with pytest.raises(MissingJavaError, match="which contains no bin/java"):
        require_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_answers_nonsense_is_refused(tmp_path):
    """Something else called java is not taken for one."""
    with pytest.raises(MissingJavaError, match="cannot find the Java version of"):
        require_java(_java(tmp_path, "hello"))


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17" 2021-09-14', 17),
        ('java version "1.8.0_402"', 8),
        ("", None),
        ('version "x"', None),
    ],
)
def test_major_version_is_read_in_both_notations(text, major):
    """Java 8 and before count from 1."""
    assert java_major(text) == major
