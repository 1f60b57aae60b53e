"""Users, groups, resource pools and definitions on the simulator's REST interface."""

from collections.abc import Mapping
from typing import Final

import yaml
from msgspec import UnsetType

from lcm.sim.cml.definitions import NodeKind, write_definition, write_image, write_simplified
from lcm.sim.cml.faults import find_known, forbidden, not_found
from lcm.sim.cml.rest.documents import (
    Association,
    GroupCreate,
    GroupUpdate,
    Json,
    PoolCreate,
    PoolUpdate,
    UserCreate,
    UserUpdate,
)
from lcm.sim.cml.rest.routing import ADMIN, Call, CmlRoute, Reply, text_reply, to_reply
from lcm.sim.cml.rest.views import group_json, pool_json, user_json
from lcm.sim.cml.users import ResourcePool, User


def add_user(call: Call) -> Reply:
    """Make a user."""
    wanted = call.read(UserCreate)
    user = call.cml.users.add(wanted)
    _join_pool(call, user, user.resource_pool)
    _associate(call, user, wanted.associations)
    return _created_reply(user_json(call.cml, user))


def change_user(call: Call) -> Json:
    """Change a user."""
    found, wanted = _self_or_admin(call), call.read(UserUpdate)
    if not call.user.admin and isinstance(wanted.admin, bool):
        raise forbidden()
    call.cml.users.change(found, wanted, call.user)
    if wanted.resource_pool is None or isinstance(wanted.resource_pool, str):
        _join_pool(call, found, wanted.resource_pool)
    if not isinstance(wanted.associations, UnsetType):
        _associate(call, found, wanted.associations)
    return user_json(call.cml, found)


def groups(call: Call) -> list[Json]:
    """List groups."""
    mine = [one for one in call.cml.users.groups.values() if call.user.admin or one.id in call.user.groups]
    return [group_json(one) for one in mine]


def change_group(call: Call) -> Json:
    """Change a group."""
    found = call.cml.users.group(call.params[0])
    return group_json(call.cml.users.change_group(found, call.read(GroupUpdate)))


def pools(call: Call) -> list[str] | list[Json]:
    """List resource pools."""
    seen = [one for one in call.cml.pools.all.values() if call.user.admin or call.user.id in one.users]
    return [pool_json(call.cml, one) for one in seen] if call.flag("data") else [one.id for one in seen]


def add_pool(call: Call) -> Json | list[Json]:
    """Make one shared resource pool, or one for each user."""
    wanted = call.read(PoolCreate)
    made = [pool_json(call.cml, one) for one in call.cml.pools.add(wanted)]
    return made[0] if wanted.shared else made


def change_pool(call: Call) -> Json:
    """Change a resource pool."""
    found = call.cml.pools.get(call.params[0])
    return pool_json(call.cml, call.cml.pools.change(found, call.read(PoolUpdate)))


def images_of(call: Call) -> list[Json]:
    """List a node definition's images."""
    kind = _kind(call)
    return [write_image(kind)] if kind.image else []


def image_definition(call: Call) -> Reply:
    """Show an image, as YAML unless JSON is asked for."""
    for one in call.cml.labs.kinds.values():
        if one.image == call.params[0]:
            return _json_or_yaml(call, write_image(one))
    raise not_found("Image definition", call.params[0])


def _find_id(what: str, call: Call, names: Mapping[str, str]) -> str:
    """Find an id by the name in the path."""
    for ref, name in names.items():
        if name == call.params[0]:
            return ref
    raise not_found(what, call.params[0])


def _kind(call: Call) -> NodeKind:
    return find_known("Node definition", call.cml.labs.kinds, call.params[0])


def _json_or_yaml(call: Call, document: Json) -> Reply:
    return to_reply(document) if call.flag("json") else text_reply(yaml.safe_dump(document, sort_keys=False))


def _created_reply(document: Json) -> Reply:
    return Reply(201, to_reply(document).body)


def _self_or_admin(call: Call) -> User:
    found = call.cml.users.get(call.params[0])
    if not call.user.admin and found is not call.user:
        raise forbidden()
    return found


def _associate(call: Call, user: User, wanted: list[Association]) -> None:
    rights = {call.cml.labs.get(one.id).id: one.permissions for one in wanted}
    for lab in call.cml.labs:
        others = [one for one in lab.associations.users if one.id != user.id]
        mine = [Association(user.id, rights[lab.id])] if lab.id in rights else []
        lab.associations.users = others + mine


def _join_pool(call: Call, user: User, ref: str | None) -> None:
    for one in call.cml.pools.all.values():
        one.users = [other for other in one.users if other != user.id]
    if ref:
        call.cml.pools.get(ref).users.append(user.id)


def _usage(call: Call, pool: ResourcePool) -> Json:
    heading = {"id": pool.id, "label": pool.label, "description": pool.description}
    return heading | {"limit": pool.limit(), "usage": call.cml.pool_usage(pool)}


ROUTES: Final = (
    CmlRoute("GET", "users", lambda call: [user_json(call.cml, user) for user in call.cml.users.everybody.values()]),
    CmlRoute("POST", "users", add_user, ADMIN),
    CmlRoute("GET", "users/{}", lambda call: user_json(call.cml, _self_or_admin(call))),
    CmlRoute("PATCH", "users/{}", change_user),
    CmlRoute("DELETE", "users/{}", lambda call: call.cml.users.remove(call.cml.users.get(call.params[0])), ADMIN),
    CmlRoute(
        "GET",
        "users/{}/id",
        lambda call: _find_id("User", call, {one.id: one.username for one in call.cml.users.everybody.values()}),
    ),
    CmlRoute("GET", "users/{}/groups", lambda call: _self_or_admin(call).groups),
    CmlRoute("GET", "groups", groups),
    CmlRoute(
        "POST",
        "groups",
        lambda call: _created_reply(group_json(call.cml.users.add_group(call.read(GroupCreate)))),
        ADMIN,
    ),
    CmlRoute("GET", "groups/{}", lambda call: group_json(call.cml.users.group(call.params[0]))),
    CmlRoute("PATCH", "groups/{}", change_group, ADMIN),
    CmlRoute(
        "DELETE", "groups/{}", lambda call: call.cml.users.remove_group(call.cml.users.group(call.params[0])), ADMIN
    ),
    CmlRoute("GET", "groups/{}/members", lambda call: call.cml.users.group(call.params[0]).members),
    CmlRoute(
        "GET", "groups/{}/labs", lambda call: [one.id for one in call.cml.users.group(call.params[0]).associations]
    ),
    CmlRoute(
        "GET",
        "groups/{}/id",
        lambda call: _find_id("Group", call, {one.id: one.name for one in call.cml.users.groups.values()}),
    ),
    CmlRoute("GET", "resource_pools", pools),
    CmlRoute("POST", "resource_pools", add_pool, ADMIN),
    CmlRoute("GET", "resource_pools/{}", lambda call: pool_json(call.cml, call.cml.pools.get(call.params[0]))),
    CmlRoute("PATCH", "resource_pools/{}", change_pool, ADMIN),
    CmlRoute(
        "DELETE", "resource_pools/{}", lambda call: call.cml.pools.remove(call.cml.pools.get(call.params[0])), ADMIN
    ),
    CmlRoute("GET", "resource_pool_usage", lambda call: [_usage(call, one) for one in call.cml.pools.all.values()]),
    CmlRoute("GET", "resource_pool_usage/{}", lambda call: _usage(call, call.cml.pools.get(call.params[0]))),
    CmlRoute("GET", "node_definitions", lambda call: [write_definition(one) for one in call.cml.labs.kinds.values()]),
    CmlRoute("GET", "node_definitions/{}", lambda call: _json_or_yaml(call, write_definition(_kind(call)))),
    CmlRoute("GET", "node_definitions/{}/image_definitions", images_of),
    CmlRoute(
        "GET",
        "simplified_node_definitions",
        lambda call: [write_simplified(one) for one in call.cml.labs.kinds.values()],
    ),
    CmlRoute(
        "GET", "image_definitions", lambda call: [write_image(one) for one in call.cml.labs.kinds.values() if one.image]
    ),
    CmlRoute("GET", "image_definitions/{}", image_definition),
)
