"""The table of operations: every plane has each of them as it is declared, and every route of them says who may."""

import inspect
import typing

import pytest

from harness.plane_world import Stage
from lcm.api.routes.table import ROUTES
from lcm.control.plane import protocol
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.local import LocalPlane
from lcm.control.plane.local_operations import LocalOperations
from lcm.control.plane.operation import Operation, OperationGroup, operations_of
from lcm.control.plane.operations import PlaneOperations
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Forbidden

OPERATIONS = operations_of(PlaneOperations)


def called(operation: Operation) -> str:
    return operation.name


def hints(group: type[OperationGroup], name: str) -> dict[str, object]:
    return typing.get_type_hints(getattr(group, name), localns=vars(protocol))


def test_both_planes_perform_every_operation_of_the_table() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    for plane in (Plane, LocalPlane, HttpPlane):
        assert operations_of(plane) == OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
def test_an_operation_is_done_in_process_as_it_is_declared(operation: Operation) -> None:
    done = inspect.signature(getattr(LocalOperations, operation.name)).parameters.values()
    declared = operation.signature.parameters.values()
    assert operation not in operations_of(LocalOperations), "nothing does its work"
    shapes = [[(one.name, one.kind, one.default) for one in several] for several in (declared, [*done][1:])]
    assert shapes[0] == shapes[1]
    assert hints(LocalOperations, operation.name) == hints(PlaneOperations, operation.name)
    assert inspect.getdoc(getattr(PlaneOperations, operation.name))


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
def test_every_argument_of_an_operation_has_a_place_in_its_request(operation: Operation) -> None:
    assert {*operation.in_path, *operation.in_query, *operation.in_body} == {*operation.signature.parameters}
    assert len(operation.in_path) == operation.path.count("{")
    assert bool(operation.in_body) is (operation.body is not None)


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
def test_an_operation_is_served_to_those_who_may_and_nobody_else(operation: Operation) -> None:
    (route,) = [one for one in ROUTES if one.operation == operation.operation_id]
    assert (route.method, route.path) == (operation.method, operation.path)
    assert route.policy.roles == operation.permission.roles
    assert route.policy.roles
    assert not route.policy.public


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
async def test_in_process_too_an_operation_is_refused_before_its_work_begins(operation: Operation) -> None:
    for role in {*Role} - operation.permission.roles:
        with pytest.raises(Forbidden, match=f"may not {operation.permission.deed}"):
            await Stage()[Caller(name="somebody", role=role)].perform(operation)
