"""Answers of Prometheus's HTTP API, real, broken and too large."""

import json

import pytest

from tidegate.pipeline.prometheus import answers
from tidegate.pipeline.prometheus.answers import AnswerError, read_answer, series_of


def _read(answer):
    return series_of(read_answer(json.dumps(answer).encode(), source="it"), source="it")


def _matrix(*series):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}


def test_points_that_are_not_finite_are_left_out():
    """NaN is what Kafka's throttle-time says before the first throttle."""
    [series] = _read(_matrix({"metric": {"a": "b"}, "values": [[1, "NaN"], [2.5, "3e2"], [3, "+Inf"]]}))
    assert (series.labels, series.points, series.times) == ({"a": "b"}, [(2.5, 300.0)], 3)


def test_a_vector_has_one_point_each():
    """The answer of an instant query."""
    vector = {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}
    [series] = _read({"status": "success", "data": vector})
    assert series.points == [(1.0, 2.0)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<html>", "it is not JSON of Prometheus"),
        (b"[" * 100_000, "it is not JSON of Prometheus"),
        (b"\xff", "it is not JSON of Prometheus"),
        (b"[]", "it is not an answer of Prometheus"),
        (b'{"status":"success"}', "it is not an answer of Prometheus"),
        (b'{"status":"error","error":"bad\\u001b[2J data"}', "it answers: bad [2J data"),
        (b'{"status":"success","data":[]}', "it has no series: expected a matrix, got 'None'"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "got 'scalar'"),
    ],
)
def test_what_is_no_answer_is_refused(content, problem):
    """One error that says what was expected."""
    with pytest.raises(AnswerError) as caught:
        series_of(read_answer(content, source="it"), source="it")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "series",
    [
        {},
        [],
        {"metric": [], "values": []},
        {"metric": {"a": 1}, "values": []},
        {"metric": {}, "values": [[1]]},
        {"metric": {}, "values": [[1, "many"]]},
        {"metric": {}, "values": [["NaN", "1"]]},
        {"metric": {}, "values": [[-1, "1"]]},
        {"metric": {}, "values": [[1e300, "1"]]},
        {"metric": {}, "values": {"a": 1}},
        {"metric": {}, "values": 7},
    ],
)
def test_broken_series_are_refused(series):
    """Any shape that Prometheus does not send."""
    with pytest.raises(AnswerError, match="has a series that is not one of Prometheus"):
        _read(_matrix(series))


def test_answers_are_bounded(monkeypatch):
    """In bytes, series and points; the bounds are made small here."""
    for bound, small in (("MAX_ANSWER_BYTES", 200), ("MAX_SERIES", 1), ("MAX_POINTS", 3)):
        monkeypatch.setattr(answers, bound, small)
    one = {"metric": {}, "values": [[1, "1"]]}
    with pytest.raises(AnswerError, match="larger than"):
        read_answer(b" " * 201, source="it")
    with pytest.raises(AnswerError, match="it has 2 series, expected at most 1"):
        _read(_matrix(one, one))
    with pytest.raises(AnswerError, match="more than 3 points"):
        _read(_matrix({"metric": {}, "values": [[at, "1"] for at in range(4)]}))
