"""Every error becomes a problem document and, from it, the very same error."""

from datetime import timedelta

import msgspec
import pytest

from lcm.control.plane.problems import Problem, error_of, problem_of
from lcm.model.base import errors
from lcm.model.base.errors import (
    Conflict,
    Deposed,
    Fault,
    Forbidden,
    Gone,
    IllegalStep,
    Invalid,
    Later,
    LcmError,
    NoRoom,
    NotSignedIn,
    Refused,
    Relist,
    StoreFull,
    Stuck,
    Taken,
    Throttled,
    TooLarge,
    Unreachable,
    WentBack,
)

SAMPLES: list[tuple[LcmError, str, int]] = [
    (Conflict("workers/default/w1", wanted=3, found=7), "Conflict", 409),
    (Conflict("workers/default/w1", wanted=3, found=0), "Conflict", 409),
    (Conflict("workers/default/w1", wanted=0, found=7), "AlreadyExists", 409),
    (Conflict("k", wanted=3, found=3, message="it is being deleted"), "Conflict", 409),
    (Taken("s1 is taken"), "AlreadyExists", 409),
    (Relist("compacted"), "Relist", 410),
    (Deposed("term 3 is over"), "Deposed", 409),
    (Gone("there is no w1"), "NotFound", 404),
    (Refused("in use"), "Refused", 409),
    (Invalid(Fault("spec.a", "missing", "write it"), Fault("spec.b", "odd")), "Invalid", 422),
    (TooLarge("too much"), "TooLarge", 413),
    (IllegalStep("A -> B\nits story:\n…"), "IllegalStep", 409),
    (Forbidden("may not"), "Forbidden", 403),
    (NotSignedIn("no token"), "Unauthorized", 401),
    (NoRoom("full"), "NoRoom", 409),
    (Later("restoring", after=timedelta(seconds=7)), "Later", 503),
    (Throttled("slow down", after=timedelta(seconds=2.5)), "Throttled", 503),
    (Unreachable("no answer"), "Unreachable", 503),
    (StoreFull("no room"), "StoreFull", 503),
    (Stuck("NewerSchema", "upgrade it"), "Stuck", 500),
    (WentBack("from 440 to 222"), "Stuck", 500),
]


def sent(problem: Problem) -> Problem:
    return msgspec.json.decode(msgspec.json.encode(problem), type=Problem)


@pytest.mark.parametrize(("error", "reason", "status"), SAMPLES)
def test_an_error_survives_the_way_there_and_back(error: LcmError, reason: str, status: int) -> None:
    problem = problem_of(error)
    assert (problem.reason, problem.status, problem.type, problem.detail) == (reason, status, "about:blank", str(error))
    back = error_of(sent(problem))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_every_error_of_the_tree_is_among_the_samples() -> None:
    tree = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, LcmError)}
    assert tree - {type(error) for error, _, _ in SAMPLES} == {LcmError}


def test_a_conflict_with_a_revision_that_was_named_is_a_failed_precondition() -> None:
    error = Conflict("k", wanted=3, found=7)
    assert problem_of(error, matched=True).status == 412
    assert isinstance(error_of(sent(problem_of(error, matched=True))), Conflict)


def test_what_is_not_said_is_left_out() -> None:
    document = msgspec.json.decode(msgspec.json.encode(problem_of(Gone("x"))))
    assert document.keys() == {"type", "title", "status", "detail", "reason"}


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("RateLimited", 429, Throttled),
        ("TokenExpired", 401, NotSignedIn),
        ("Malformed", 400, Invalid),
        ("RequestTimeout", 408, Unreachable),
        ("MethodNotAllowed", 405, Refused),
        ("Bug", 500, Stuck),
        ("NoRoute", 404, Stuck),
        ("SomethingNew", 418, Refused),
        ("SomethingWorse", 503, Stuck),
    ],
)
def test_a_reason_that_is_no_error_of_ours_becomes_its_nearest_kin(reason: str, status: int, kind: type) -> None:
    problem = Problem(title="t", status=status, detail="d", reason=reason, retry_after_seconds=3)
    error = error_of(problem)
    assert type(error) is kind
    assert "d" in str(error)


@pytest.mark.parametrize("seconds", [-1.0, 1e9])
def test_a_senseless_wait_is_not_believed(seconds: float) -> None:
    error = error_of(Problem(title="t", status=503, detail="d", reason="Later", retry_after_seconds=seconds))
    assert isinstance(error, Later)
    assert error.after == timedelta(seconds=1)


def test_a_problem_stays_small_however_much_is_wrong() -> None:
    many = Invalid(*(Fault(f"spec.{number}", "x" * 10_000, "y" * 10_000) for number in range(5_000)))
    problem = problem_of(many)
    assert len(problem.detail) <= 2_000
    assert len(msgspec.json.encode(problem)) < 1_100_000
    few = problem_of(Invalid(*(Fault(f"spec.{number}", "odd") for number in range(9))))
    assert few.detail.splitlines()[-1] == "and 4 more"
    assert len(few.faults or ()) == 9
