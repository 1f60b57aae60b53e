"""A FastAPI route with pydantic models that validates a worker, checks the token and calls the same plane.

It answers with bytes of ours, as the fastest of its kind would, and not through a model.
"""

from typing import Annotated, Literal

import msgspec
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field

from lcm.control.access.tokens import Tokens
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller
from lcm.model.kinds.worker import LabWorker

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.:-]{0,61}[a-z0-9])?$")]
Region = Annotated[str, Field(pattern=r"^[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}$")]
Labels = dict[Annotated[str, Field(min_length=1, max_length=128)], Annotated[str, Field(max_length=256)]]
Minutes = Annotated[int, Field(ge=1, le=366 * 24 * 60)]
Count = Annotated[int, Field(ge=0, le=2**53)]


class Strict(BaseModel):
    """Knows its fields and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Metadata(Strict):
    name: Name
    namespace: Name = "default"
    labels: Labels = {}
    annotations: Labels = {}


class RootVolume(Strict):
    kind: Literal["io1", "io2", "gp3"] = "io1"
    size_gb: Count = 250
    iops: Count = 5000
    encrypted: bool = True


class Aws(Strict):
    region: Region = "us-east-1"
    instance_type: str = "m5zn.metal"
    instance_type_alternatives: tuple[str, ...] = ()
    ami_id: str | None = None
    ami_name_pattern: str | None = None
    vpc_id: str | None = None
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    root_volume: RootVolume = RootVolume()
    iam_instance_profile: str | None = None
    key_pair: str | None = None
    public_ip: bool = True
    nested_virtualization: bool = False
    tags: Labels = {}


class Cml(Strict):
    admin_username: str = "admin"
    admin_password: str = "env:CML_ADMIN_PASSWORD"
    license_flavour: Literal["personal", "enterprise", "evaluation"] = "enterprise"
    license_token: str | None = None
    max_nodes_unlicensed: Count = 5
    max_nodes_licensed: Count = 200
    telemetry: bool = False


class Idle(Strict):
    enabled: bool = True
    threshold_minutes: Minutes = 30
    warn_minutes: Count = 5
    snooze_minutes: Minutes = 60


class Spec(Strict):
    aws: Aws = Aws()
    cml: Cml = Cml()
    host_kind: Literal["cml", "container"] = "cml"
    lab_types: tuple[str, ...] = ("CML",)
    lab_track: str = ""
    wanted_state: Literal["running", "stopped"] = "running"
    max_concurrent_labs: Annotated[int, Field(ge=1, le=20)] = 20
    idle: Idle = Idle()
    drain_deadline_minutes: Minutes = 240
    auto_remediate: bool = True
    accepts_sessions: bool = True


class Worker(Strict):
    metadata: Metadata
    api_version: Literal["lcm/v1"] = "lcm/v1"
    kind: Literal["LabWorker"] = "LabWorker"
    spec: Spec = Spec()


def application(core: ControlPlane, tokens: Tokens) -> FastAPI:
    app = FastAPI()

    def signed_in(authorization: Annotated[str, Header()] = "") -> Caller:
        caller = tokens.find_caller(authorization.removeprefix("Bearer "))
        if caller is None:
            raise HTTPException(401)
        return caller

    @app.post("/api/workers", status_code=201)
    async def create(worker: Worker, caller: Annotated[Caller, Depends(signed_in)]) -> Response:
        made = await core.plane_for(caller).create(msgspec.convert(worker.model_dump(mode="json"), LabWorker))
        headers = {"ETag": f'"{made.metadata.resource_version}"'}
        return Response(msgspec.json.encode(made), 201, headers, "application/json")

    return app
