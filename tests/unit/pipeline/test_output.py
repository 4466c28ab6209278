"""Where results may be written."""

import json

import pytest

from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.output import MARKER, prepare_output


def _prepare(directory, *, overwrite=False):
    prepare_output(directory, command="usage", tables=["b", "a"], overwrite=overwrite)


def test_new_directory_is_made_and_marked(tmp_path):
    """The marker says which command wrote which tables."""
    _prepare(tmp_path / "deep" / "out")
    marker = json.loads((tmp_path / "deep" / "out" / MARKER).read_text())
    assert marker == {"command": "usage", "tables": ["a", "b"]}


def test_our_own_directory_is_written_again(tmp_path):
    """Results may replace results."""
    _prepare(tmp_path)
    (tmp_path / "a.parquet").mkdir()
    _prepare(tmp_path)


def test_foreign_directory_is_refused(tmp_path):
    """What is not ours stays, unless the user says so; nothing is deleted even then."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"is not empty .* \(found 'thesis.txt'\)") as caught:
        _prepare(tmp_path)
    assert "--overwrite" in caught.value.hint
    _prepare(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_file_in_the_way_is_one_clear_error(tmp_path):
    """A path that is a file cannot be a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"^cannot write to '.*file': File exists$"):
        _prepare(tmp_path / "file")
