"""What is wrong with an ACL, in Kafka's words."""

import pytest
from tests.unit.acl.test_authorizer import acl

from tidegate.acl import acl_problem, codes, known_code

GOOD = acl("allow alice read topic literal t")


def test_good_acls() -> None:
    """Nothing is wrong with them."""
    assert acl_problem(GOOD) is None
    assert acl_problem(GOOD._replace(resource_type=codes.CLUSTER, resource_name="kafka-cluster")) is None


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"resource_type": codes.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": codes.UNKNOWN}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": codes.UNKNOWN}, "Invalid patternType UNKNOWN"),
        ({"operation": codes.UNKNOWN}, "Invalid operation UNKNOWN"),
        ({"permission": codes.UNKNOWN}, "Invalid permissionType UNKNOWN"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, object], problem: str) -> None:
    """Each mistake with its text."""
    assert acl_problem(GOOD._replace(**changed)) == problem  # type: ignore[arg-type]


def test_numbers_that_are_unknown() -> None:
    """They stand for `UNKNOWN`, whatever they are."""
    assert [known_code(number, codes.PERMISSIONS) for number in (-1, 0, 3, 4, 127)] == [0, 0, 3, 0, 0]


def test_an_acl_is_logged_in_one_line() -> None:
    """Whatever is in its names."""
    assert str(GOOD._replace(principal="User:a\nb", host="'")) == (
        "ALLOW 'User:a\\nb' READ from host \"'\" on TOPIC LITERAL 't'"
    )
