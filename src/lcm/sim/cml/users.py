"""Users, groups, sign-in tokens and resource pools of a simulated CML."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.sim.cml.faults import CmlFull, CmlRefusal, bad_request, find_known, forbidden
from lcm.sim.cml.labs import CmlCore
from lcm.sim.cml.parts import Node, SimLab
from lcm.sim.cml.rest.documents import (
    Association,
    Credentials,
    GroupCreate,
    GroupUpdate,
    Json,
    PoolCreate,
    PoolLimits,
    PoolUpdate,
    UserCreate,
    UserUpdate,
)

ADMIN_ID: Final = "00000000-0000-4000-a000-000000000000"
SESSION_SECONDS: Final = 86_400
ALL_PERMISSIONS: Final = ("lab_admin", "lab_edit", "lab_exec", "lab_view")
_SHORTEST_PASSWORD: Final = 5


@dataclass(slots=True, eq=False)
class User:
    """A person who may sign in."""

    id: str
    username: str
    password: str
    created: datetime
    modified: datetime
    admin: bool = False
    fullname: str = ""
    description: str = ""
    email: str = ""
    groups: list[str] = field(default_factory=list)
    resource_pool: str | None = None
    opt_in: bool | None = None
    tour_version: str = ""
    pubkey: str = ""


@dataclass(slots=True, eq=False)
class Group:
    """Users who share labs."""

    id: str
    name: str
    created: datetime
    modified: datetime
    description: str = ""
    members: list[str] = field(default_factory=list)
    associations: list[Association] = field(default_factory=list)


class Users:
    """All users and their tokens."""

    def __init__(self, core: CmlCore, username: str, password: str) -> None:
        now = core.pace.now()
        admin = User(ADMIN_ID, username, password, now, now, admin=True)
        self._core = core
        self._secret = core.chance.randbytes(32)
        self._tokens: dict[str, tuple[str, datetime]] = {}
        self.everybody: dict[str, User] = {admin.id: admin}
        self.groups: dict[str, Group] = {}
        self.session_seconds = SESSION_SECONDS

    @property
    def administrator(self) -> User:
        return self.everybody[ADMIN_ID]

    def check(self, credentials: Credentials) -> User:
        """Return the user with this name and password; refuse any other."""
        for user in self.everybody.values():
            if (user.username, user.password) == (credentials.username, credentials.password):
                return user
        raise forbidden("Authentication failed!")

    def sign_in(self, credentials: Credentials) -> tuple[User, str]:
        """Make a token for a user."""
        user, now = self.check(credentials), self._core.pace.now()
        self._tokens = {token: (owner, end) for token, (owner, end) in self._tokens.items() if end > now}
        end = now + timedelta(seconds=self.session_seconds)
        token = self._token(user, now, end)
        self._tokens[token] = user.id, end
        return user, token

    def find_by_token(self, token: str) -> User:
        """Return the user of a valid token; refuse any other."""
        user_id, end = self._tokens.get(token, ("", None))
        if end is None or end <= self._core.pace.now():
            raise CmlRefusal(401, "Unauthorized")
        return self.everybody[user_id]

    def sign_out(self, user: User, token: str | None = None) -> None:
        """Invalidate one token of a user, or all of them."""
        self._tokens = {
            one: kept for one, kept in self._tokens.items() if kept[0] != user.id or token not in {None, one}
        }

    def expire_tokens(self) -> None:
        """Invalidate every token."""
        self._tokens.clear()

    def get(self, ref: str) -> User:
        """Return a user; refuse an unknown one."""
        return find_known("User", self.everybody, ref)

    def group(self, ref: str) -> Group:
        """Return a group; refuse an unknown one."""
        return find_known("Group", self.groups, ref)

    def add(self, wanted: UserCreate) -> User:
        """Make a user."""
        if any(user.username == wanted.username for user in self.everybody.values()):
            raise CmlRefusal(422, "User already exists")
        _check_password(wanted.password)
        now = self._core.pace.now()
        user = User(self._core.ids(), wanted.username, wanted.password, now, now)
        for name in ("fullname", "description", "email", "admin", "resource_pool", "opt_in", "tour_version", "pubkey"):
            setattr(user, name, getattr(wanted, name))
        self.everybody[user.id] = user
        self._join(user, wanted.groups)
        return user

    def change(self, user: User, wanted: UserUpdate, by: User) -> User:
        """Change a user. A new password or other rights sign the user out everywhere."""
        given = wanted.given()
        password = given.pop("password", None)
        if password is not None:
            if not by.admin and password.old_password != user.password:
                raise forbidden("Wrong old password.")
            _check_password(password.new_password)
            user.password = password.new_password
        self._join(user, given.pop("groups", user.groups))
        given.pop("associations", None)
        if password is not None or given.get("admin", user.admin) != user.admin:
            self.sign_out(user)
        for name, value in given.items():
            setattr(user, name, value)
        user.modified = self._core.pace.now()
        return user

    def remove(self, user: User) -> None:
        """Remove a user, who is signed out."""
        if user.id == ADMIN_ID:
            raise bad_request("This user cannot be deleted.")
        self.sign_out(user)
        self._join(user, [])
        del self.everybody[user.id]

    def add_group(self, wanted: GroupCreate) -> Group:
        """Make a group."""
        if any(group.name == wanted.name for group in self.groups.values()):
            raise CmlRefusal(422, "Group already exists")
        now = self._core.pace.now()
        group = Group(self._core.ids(), wanted.name, now, now, wanted.description)
        self.groups[group.id] = group
        return self.change_group(group, GroupUpdate(members=wanted.members, associations=wanted.associations))

    def change_group(self, group: Group, wanted: GroupUpdate) -> Group:
        """Change a group."""
        given = wanted.given()
        members = given.pop("members", None)
        for name, value in given.items():
            setattr(group, name, value)
        for user in self.everybody.values() if members is not None else ():
            others = [ref for ref in user.groups if ref != group.id]
            self._join(user, [*others, group.id] if user.id in members else others)
        group.modified = self._core.pace.now()
        return group

    def remove_group(self, group: Group) -> None:
        """Remove a group."""
        self.change_group(group, GroupUpdate(members=[]))
        del self.groups[group.id]

    def permissions(self, user: User, lab: SimLab) -> tuple[str, ...]:
        """Return what a user may do with a lab; nothing means that the lab is not even visible."""
        if user.admin or lab.owner_id == user.id:
            return ALL_PERMISSIONS
        mine = [one for one in lab.associations.users if one.id == user.id]
        mine += [one for one in lab.associations.groups if one.id in user.groups]
        held = {right for one in mine for right in one.permissions}
        held |= {
            right
            for ref in user.groups
            for one in self.groups[ref].associations
            if one.id == lab.id
            for right in one.permissions
        }
        return tuple(right for right in ALL_PERMISSIONS if right in held)

    def _join(self, user: User, refs: list[str]) -> None:
        for group in self.groups.values():
            group.members = [ref for ref in group.members if ref != user.id]
        user.groups = [self.group(ref).id for ref in refs]
        for ref in user.groups:
            self.groups[ref].members.append(user.id)

    def _token(self, user: User, start: datetime, end: datetime) -> str:
        claims = {
            "iss": "com.cisco.virl",
            "iat": int(start.timestamp()),
            "exp": int(end.timestamp()),
            "sub": user.id,
            "jti": self._core.ids(),
        }
        signed = b".".join(_b64(msgspec.json.encode(one)) for one in ({"alg": "HS256", "typ": "JWT"}, claims))
        return (signed + b"." + _b64(hmac.digest(self._secret, signed, hashlib.sha256))).decode()


def _check_password(password: str) -> None:
    if len(password) < _SHORTEST_PASSWORD:
        raise forbidden("Password validation failure! The password is too short.")


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@dataclass(slots=True, eq=False)
class ResourcePool:
    """A resource pool; None means no limit."""

    id: str
    label: str
    description: str = ""
    template: str | None = None
    licenses: int | None = None
    ram: int | None = None
    cpus: int | None = None
    disk_space: int | None = None
    external_connectors: list[str] | None = None
    users: list[str] = field(default_factory=list)

    def limit(self) -> Json:
        """Return its limits, CPUs in hundredths as CML does."""
        cpus = None if self.cpus is None else self.cpus * 100
        return {
            "licenses": self.licenses,
            "cpus": cpus,
            "ram": self.ram,
            "disk_space": self.disk_space,
            "external_connectors": self.external_connectors,
        }


class ResourcePools:
    """All resource pools."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.all: dict[str, ResourcePool] = {}

    def get(self, ref: str) -> ResourcePool:
        """Return a pool; refuse an unknown one."""
        return find_known("Resource pool", self.all, ref)

    def of_user(self, user_id: str) -> ResourcePool | None:
        """Return the pool of a user; None when there is none."""
        return next((pool for pool in self.all.values() if user_id in pool.users), None)

    def add(self, wanted: PoolCreate) -> list[ResourcePool]:
        """Make a shared pool, or one for each user under a template."""
        if wanted.shared:
            return [self._make(wanted, wanted.users, wanted.template)]
        made = [] if wanted.template else [self._make(wanted, [], None)]
        template = wanted.template or made[0].id
        return made + [self._make(wanted, [user], template) for user in wanted.users]

    def change(self, pool: ResourcePool, wanted: PoolUpdate) -> ResourcePool:
        """Change a pool."""
        for name, value in wanted.given().items():
            setattr(pool, name, value)
        return pool

    def remove(self, pool: ResourcePool) -> None:
        """Remove a pool that is no template of others."""
        if self.children(pool):
            raise CmlRefusal(409, "The resource pool is a template of other pools.")
        del self.all[pool.id]

    def children(self, pool: ResourcePool) -> list[str]:
        """Return the ids of the pools made from a template."""
        return [one.id for one in self.all.values() if one.template == pool.id]

    def check_limits(self, pool: ResourcePool, running: Iterable[Node], more: Sequence[Node]) -> None:
        """Refuse nodes that would exceed the pool."""
        used = resource_usage([*running, *more])
        for what, most in pool.limit().items():
            if isinstance(most, int) and used[what] > most:
                raise CmlFull(f"Resource pool {pool.label} limit exceeded: {what}.")

    def _make(self, wanted: PoolCreate, users: list[str], template: str | None) -> ResourcePool:
        limits = {name: getattr(wanted, name) for name in PoolLimits.__struct_fields__}
        pool = ResourcePool(self._new_id(), wanted.label, wanted.description, template, users=users, **limits)
        self.all[pool.id] = pool
        return pool


def resource_usage(nodes: Iterable[Node]) -> Json:
    """Return what nodes use in total, CPUs in hundredths as CML does."""
    held = list(nodes)
    return {
        "licenses": sum(node.kind.needs_licence for node in held),
        "cpus": sum(node.cpus * 100 for node in held),
        "ram": sum(node.ram_mb for node in held),
        "disk_space": sum(node.boot_disk_gb + node.data_volume_gb for node in held),
        "external_connectors": ["virbr0"] if any(n.kind.nature == "external_connector" for n in held) else [],
    }
