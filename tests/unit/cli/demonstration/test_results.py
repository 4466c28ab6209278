"""The demo writes over what a demo wrote, and over nothing else."""

import pytest

from tidegate.cli.demonstration.results import Results
from tidegate.errors import ConfigError


def test_a_new_directory_is_made(tmp_path):
    """The directory and those above it need not be there."""
    results = Results(tmp_path / "a" / "b")
    assert results.plans.is_dir()


def test_an_earlier_demo_is_cleared_away(tmp_path):
    """What the last demo left is gone when the next begins."""
    first = Results(tmp_path)
    first.broker.mkdir()
    (first.broker / "old").touch()
    log = first.directory / "broker.log"
    log.touch()
    second = Results(tmp_path)
    assert not second.broker.exists()
    assert not log.exists()


def test_a_file_among_the_results_stays(tmp_path):
    """What somebody put beside an earlier demo's results is not the demo's to delete."""
    Results(tmp_path)
    (tmp_path / "notes.txt").touch()
    Results(tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_a_foreign_directory_is_refused(tmp_path):
    """A directory with anything else in it is left alone, and the error says what was found."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"is not empty .*'thesis\.tex'") as refused:
        Results(tmp_path)
    assert "--out" in refused.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_link_is_removed_and_not_followed(tmp_path):
    """A symbolic link in the place of a result leads nowhere that the demo deletes."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    results = Results(tmp_path / "out")
    results.broker.symlink_to(precious)
    Results(tmp_path / "out")
    assert (precious / "data").exists()


def test_a_file_in_its_place_is_an_error(tmp_path):
    """A name that is taken by a file cannot become a directory."""
    (tmp_path / "out").touch()
    with pytest.raises(ConfigError, match="cannot write to"):
        Results(tmp_path / "out")
