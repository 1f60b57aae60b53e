"""A secret in every place that takes one, every way out of the system looked at: it comes to light nowhere.

Fields are found by their types, settings and routes in their tables: what is added later is tried by itself.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml

from harness import documents as filled
from harness.api_world import Shell
from harness.commands import Running, lcm, up
from harness.credentials import Canary
from harness.servers import LOOPBACK, free_port
from lcm.api.http.answers import NDJSON, SSE
from lcm.api.http.routing import GET, Route
from lcm.api.openapi.description import BODIES, DOCUMENTS, describe
from lcm.api.routes.table import ROUTES
from lcm.control.plane.wire import ShownSink
from lcm.model.access.secret import list_secrets
from lcm.model.kinds.registry import KINDS
from lcm.settings.values import VARIABLES

SOON = 60.0
DESCRIBED = msgspec.json.decode(describe(ROUTES))["paths"]
FREE_LIMITS = {"LCM_REQUESTS_PER_SECOND": "1000000", "LCM_REQUEST_BURST": "1000000"}
LOCAL_SINKS = {"WEBHOOK_NETWORKS": "127.0.0.0/8", "WEBHOOK_HTTP_ALLOWED": "true"}
BEARING = {kind.name: kind.struct for kind in KINDS.values()} | {"ShownSink": ShownSink}
"""Everything that people write and that may hold secrets, by the name of its example."""
MUST_SUCCEED = [
    *(f"{verb}{name}" for verb in ("create", "replace", "get") for name in KINDS),
    *(f"patch{name}" for name in KINDS if name != "Sink"),
    *("deleteLabWorker", "deleteSink"),
    *(f"{verb}EventSink" for verb in ("create", "replace", "get", "patch", "delete")),
    *(
        "uploadTopology",
        "apply",
        "sealSecret",
        "rotateSealKeys",
        "makeToken",
        "inviteBrowser",
        "metrics",
        "listAudit",
        "listEvents",
    ),
]
"""What was refused whenever it was asked for would prove nothing."""


def secret_settings(canary: Canary) -> dict[str, str]:
    """Put the canary into every setting that is a secret."""
    odd = {
        "LCM_SEAL_KEYS": canary.key(),
        "WORKER_NOTIFICATION_WEBHOOKS": f"http://{LOOPBACK}:{free_port()}/{canary.secret('webhook')}",
    }
    said = {one.name: odd.get(one.name, canary.secret(one.name)) for one in VARIABLES if one.secret}
    return (
        said
        | {
            "ETCD_USER": "lcm",
            "SMTP_HOST": LOOPBACK,
            "SMTP_PORT": str(free_port()),
            "SMTP_USER": "lcm",
            "MAIL_FROM": "labs@example.org",
            "OIDC_CLIENT_ID": "lcm",
            "OIDC_ISSUER": f"http://{LOOPBACK}:9",
            "OIDC_AUDIENCE": "lcm",
            "LOG_LEVEL": "DEBUG",
        }
        | FREE_LIMITS
        | LOCAL_SINKS
    )


def secret_paths(kind: type[msgspec.Struct]) -> list[str]:
    return [path for path, _ in list_secrets(msgspec.convert(filled.filled_document(kind), kind))]


def example(name: str) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(DOCUMENTS.get(name) or BODIES["ShownSink"]))
    return made


def with_all(name: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return an example with a value in each place that is for a secret."""
    document = example(name) | more
    for path in secret_paths(BEARING[name]):
        *parts, last = path.split(".")
        place = document
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return document


def wrong_values(canary: Canary, place: str) -> Iterator[Any]:
    """Return what somebody may write who means to write a secret."""
    secret = canary.secret(place)
    yield secret
    yield f"plain {secret}"
    yield f" plain:{secret}"
    yield f"plain:{secret * 100}"
    yield f"plain:{secret}\x00"
    yield f"sealed:{secret}"
    yield f"sealed:0123456789ab:{secret}"
    yield f"secret:{secret}"
    yield [f"plain:{secret}", secret]
    yield {"plain": secret, "value": f"plain:{secret}"}
    yield {f"plain:{secret}": 1}


def bodies(canary: Canary, route: Route) -> Iterator[tuple[bytes, str]]:
    """Return bodies for a route, sound ones with secrets first, and their media types."""
    media = route.body_media[0].decode()
    name = _bearer(route)
    content = DESCRIBED[route.path][route.method.lower()]["requestBody"]["content"]
    documents: list[Any] = [next(iter(content.values()))["example"]]
    if isinstance(documents[0], str):
        yield documents[0].encode(), media
    documents += [{"unknown": canary.secret("unknown")}, [canary.secret("list")], canary.secret("text"), None]
    if name is not None:
        good = with_all(name, f"plain:{canary.secret(name)}")
        odd = [with_all(name, value) for value in wrong_values(canary, name)]
        strays = [good | {field: f"plain:{canary.secret(field)}"} for field in good]
        documents = [good, good, {**good, "nonsense": 1}, *odd, *strays, *documents]
    for document in documents:
        wrapped = {"documents": [document]} if route.operation == "apply" else document
        yield msgspec.json.encode(wrapped), media
    whole = msgspec.json.encode(documents[0])
    for broken in (
        whole[:-3],
        whole + b"}",
        whole.replace(b":", b"", 1),
        b"\xff" + whole,
        whole.decode().encode("utf-16"),
    ):
        yield broken, media
    yield whole, "text/plain"


def _bearer(route: Route) -> str | None:
    if route.operation == "apply":
        return "LabWorker"
    if route.operation in {"createSink", "replaceSink"}:
        return "ShownSink"
    return route.kind.name if route.kind and "{id}/" not in route.path else None


def _rank(route: Route) -> tuple[bool, int]:
    """Make things before they are used, in an order in which each finds what it refers to, and remove them last."""
    creates = list(DOCUMENTS).index(route.kind.name) if route.kind and route.operation.startswith("create") else 99
    creates = -1 if route.operation == "uploadTopology" else creates
    return route.method == "DELETE", creates


def target(route: Route) -> str:
    name = str(example(_bearer(route) or "ShownSink").get("metadata", {"name": BODIES["ShownSink"]["name"]})["name"])
    if route.kind:
        name = str(DOCUMENTS[route.kind.name]["metadata"]["name"])
    return route.path.replace("{id}", name).replace("{name}", "a-lease").replace("{file}", "lab.yaml")


def query(route: Route) -> dict[str, Any]:
    found = DESCRIBED[route.path][route.method.lower()]["parameters"]
    return {one["name"]: one["schema"]["examples"][0] for one in found if one["in"] == "query" and one["required"]}


class Exercise:
    """Calls a running system, and looks at all that it answers."""

    def __init__(self, running: Running, canary: Canary) -> None:
        self.canary = canary
        self.running = running
        self.root = running.client()
        self.service = running.client(canary.secret("CONTROL_PLANE_API_KEY"))
        self.done: dict[str, int] = {}
        """The best status of each operation."""

    async def ask(self, client: httpx.AsyncClient, method: str, path: str, **request: Any) -> httpx.Response:
        answer = await client.request(method, path, **request)
        self.see(f"{method} {path}", answer)
        return answer

    def see(self, what: str, answer: httpx.Response) -> None:
        headers = "\n".join(f"{name}: {text}" for name, text in answer.headers.items())
        self.canary.look(f"{what} -> {answer.status_code}", headers.encode() + answer.content, self.running.token)

    async def every_route(self) -> None:
        """Call each route with sound and broken bodies, those that take things away last."""
        for route in sorted(ROUTES, key=_rank):
            if route.answer_media in (NDJSON, SSE):
                continue
            client = self.service if route.path.startswith("/api/internal/") else self.root
            wanted = query(route)
            dry = {"dry_run": "true"} if "dry_run" in route.query.__struct_fields__ else {}
            if route.body is None:
                await self._once(client, route, wanted | dry)
                await self._once(client, route, wanted)
                continue
            for content, media in dict.fromkeys(bodies(self.canary, route)):
                await self._once(client, route, wanted, content=content, headers={"content-type": media})
            content, media = next(bodies(self.canary, route))
            await self._once(client, route, wanted | dry, content=content, headers={"content-type": media})

    async def _once(self, client: httpx.AsyncClient, route: Route, params: dict[str, Any], **body: Any) -> None:
        answer = await self.ask(client, route.method, target(route), params=params, **body)
        assert answer.status_code != httpx.codes.INTERNAL_SERVER_ERROR, (route.path, body, answer.text)
        known = self.done.get(route.operation, 999)
        self.done[route.operation] = min(known, answer.status_code)

    async def identity(self) -> list[str]:
        """Sign in in every way, well and badly; gives the texts that were given out."""
        made = (await self.root.post("/api/tokens", json={"name": "canary", "role": "user"})).json()["token"]
        link = (await self.root.post("/api/sign-in")).json()["path"]
        stranger = httpx.AsyncClient(base_url=self.running.url, trust_env=False)
        async with stranger:
            session = await stranger.post(link, headers={"Sec-Fetch-Site": "same-origin"})
            cookies = [SimpleCookie(text) for text in session.headers.get_list("set-cookie")]
            given = [one.value for cookie in cookies for one in cookie.values() if len(one.value) > 20]
            await self.ask(stranger, GET, link)
            await self.ask(stranger, "POST", link)
            bad = self.canary.secret("bad-token")
            for headers in ({"authorization": f"Bearer {bad}"}, {"x-api-key": bad}, {"cookie": f"lcm_session={bad}"}):
                await self.ask(stranger, GET, "/api/workers", headers=headers)
            await self.ask(stranger, GET, "/sign-in", params={"code": bad})
        for path in ("/api/tokens", "/api/audit", "/metrics", "/api/whoami", "/api/events"):
            answer = await self.ask(self.root, GET, path)
            self.canary.look(path, answer.content, made, link.partition("code=")[2], *given)
        return [made, link.partition("code=")[2], *given]

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[None]:
        """Read everything that is streamed meanwhile."""
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(self._read(route)) for route in ROUTES if route.answer_media in (NDJSON, SSE)]
            await asyncio.sleep(0.1)
            yield
            await asyncio.sleep(0.3)
            for task in reading:
                task.cancel()

    async def _read(self, route: Route) -> None:
        kinds = {"kinds": ",".join(KINDS), "after": "1"} if route.answer_media == NDJSON else {}
        pieces = list[bytes]()
        try:
            async with self.root.stream(GET, route.path, params=kinds, timeout=None) as answer:
                async for piece in answer.aiter_bytes():
                    pieces.append(piece)
        finally:
            assert pieces, route.path
            self.canary.look(route.path, b"".join(pieces), self.running.token)

    async def hostile_sink(self) -> None:
        """Have events sent to somebody who repeats everything that comes in, credential and signature included."""
        async with repeating() as port:
            secret = f"plain:{self.canary.secret('hostile')}"
            sink = {"name": "hostile", "url": f"http://{LOOPBACK}:{port}/{{credential}}", "credential": secret}
            answer = await self.ask(self.root, "POST", "/api/sinks", json={**sink, "secret": secret})
            assert answer.status_code == httpx.codes.CREATED, answer.text
            await self.ask(self.root, "POST", "/api/sinks/hostile/test")
            async with asyncio.timeout(SOON):
                while not (await self._status("hostile")).get("last_error"):
                    await asyncio.sleep(0.05)
        await self.ask(self.root, GET, "/api/sinks/hostile/dead-letters")

    async def _status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] | None = (await self.ask(self.root, GET, f"/api/sinks/{name}")).json()["status"]
        return status or {}

    async def close(self) -> None:
        await self.root.aclose()
        await self.service.aclose()


@asynccontextmanager
async def repeating() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(65_536)
        line = said.partition(b"\r\n")[0]
        head = b"HTTP/1.1 500 %s\r\nx-path: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        writer.write(head % (line, line, len(said)) + said)
        await writer.drain()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, LOOPBACK, port):
        yield port


DIGITS = "8675309186753091867530918675309"
FAULTY = """\
kind: LabWorker
metadata: {{name: ccna-worker-1}}
spec:
  nonsense: 1
  cml:
{lines}
"""
SPELT = [
    '    admin_password: "plain:{0}"\n    license_token: "{0}"',
    "    admin_password: plain: {0}",
    '    admin_password: "plain:{0}',
    "    admin_password: plain:{0}\n    admin_password: plain:{0}",
    "    admin_password: *{0}",
    "    admin_password: &{0} x",
    "    admin_password: !{0} x",
    "    admin_password: |\n     plain:{0}\n    other\n",
    "    admin_password: [plain:{0}",
    "    admin_password:\tplain:{0}\n\tx",
    '    admin_password: "\\q{0}"',
    "    admin_password: plain:{0}\x07",
    "    admin_username: plain:{0}",
    "    {0}: plain:{0}: x",
    "    admin_password: @{0}",
    "    admin_password: %{0}",
    "    admin_password: {1}",
    "    admin_password: plain:{1}\n    license_token: 1{1}",
]


def command_line(running: Running, canary: Canary, home: Path) -> None:
    """Run every command that asks, with sound and faulty files, and with nobody at the other end."""
    environment = secret_settings(canary) | {"LCM_TOKEN": running.token, "LCM_DATA_DIR": str(running.home / "data")}
    here = Shell(home, columns=200, LCM_URL=running.url, **environment)
    alone = Shell(home, columns=200, LCM_URL=f"http://{LOOPBACK}:{free_port()}", **environment)
    good = home / "good.yaml"
    good.write_text(yaml.safe_dump(with_all("LabWorker", f"plain:{canary.secret('file')}")))
    outputs = [here.out("apply", "-f", good, "--dry-run"), here.out("apply", "-f", good)]
    assert "unchanged" in here.out("apply", "-f", good)
    assert here.out("secret", "seal", "Sink.secret", stdin=f"{canary.secret('stdin')}\n").startswith("sealed:")
    commands = [
        *(("get", kind.plural, "-A", "-o", form) for kind in KINDS.values() for form in ("table", "json", "yaml")),
        *(("describe", "worker", "ccna-worker-1"), ("story", "worker", "ccna-worker-1"), ("doctor",)),
        *(("doctor", "-o", "json"), ("events",), ("audit", "--since", "all"), ("sink", "list", "-o", "json")),
        *(("sink", "dead", "hostile"), ("token", "list"), ("context", "list"), ("secret", "rotate")),
        *(("wait", "worker", "ccna-worker-1", "--for", "phase=READY", "--timeout", "0.1s"), ("version",)),
        ("delete", "worker", "ccna-worker-1", "--dry-run"),
        ("sink", "create", "cli", "https://example.org", "--secret", f"plain:{canary.secret('option')}"),
        ("sink", "create", "cli", "https://example.org", "--secret", canary.secret("option")),
    ]
    outputs += [f"{command[:3]}\n{here.lcm(*command).output}" for command in commands]
    for number, lines in enumerate(SPELT):
        file = home / f"faulty-{number}.yaml"
        file.write_text(FAULTY.format(lines=lines.format(canary.secret(f"spelt-{number}"), DIGITS)))
        for shell in (here, alone):
            result = shell.lcm("apply", "-f", file)
            assert result.exit_code, lines
            outputs.append(f"{number}\n{result.output}")
    outputs += [alone.lcm(*command).output for command in (("doctor",), ("secret", "rotate"), ("get", "workers"))]
    outputs.append(alone.lcm("secret", "seal", "Sink.secret", stdin=canary.secret("stdin")).output)
    for output in outputs:
        canary.look(f"output of {output[:40]}", output, running.token, DIGITS)
    backup = lcm(home, "backup", home / "backup", **environment)  # apart: it sets up logs for its whole process
    assert backup.returncode == 0, backup.stderr
    canary.look("output of backup", backup.stdout + backup.stderr, running.token)
    canary.look("backup", (home / "backup").read_bytes(), running.token)


async def test_a_secret_comes_to_light_nowhere(tmp_path: Path) -> None:
    canary = Canary()
    running = up(tmp_path, **secret_settings(canary))
    with running as it:
        exercise = Exercise(it.ready(), canary)
        async with exercise.streams():
            await exercise.every_route()
            await exercise.hostile_sink()
            given = await exercise.identity()
        await exercise.close()
        (tmp_path / "home").mkdir()
        await asyncio.to_thread(command_line, it, canary, tmp_path / "home")
        canary.look_into(tmp_path / "data", it.token, *given)
        assert any(path.name.endswith("-wal") for path in (tmp_path / "data").iterdir())
        code, _ = await asyncio.to_thread(it.stop)
        assert code == 0, it.output
        canary.look("log", it.output, it.token, *given)
    canary.look_into(tmp_path / "data", *given)
    assert not canary.found, "\n".join(canary.found)
    assert not {name: exercise.done[name] for name in MUST_SUCCEED if exercise.done[name] >= httpx.codes.BAD_REQUEST}


def test_every_kind_that_holds_secrets_is_known() -> None:
    """An empty list would make the test above prove nothing."""
    assert secret_paths(BEARING["LabWorker"]) == ["spec.cml.admin_password", "spec.cml.license_token"]
    assert secret_paths(BEARING["WorkerTemplate"]) == [
        "spec.worker.cml.admin_password",
        "spec.worker.cml.license_token",
    ]
    assert secret_paths(BEARING["Sink"]) == [
        "spec.secret",
        "spec.previous_secret",
        "spec.credential",
        "spec.sealed_url",
    ]
    assert secret_paths(ShownSink) == ["secret", "previous_secret", "credential", "sealed_url"]


def test_a_canary_is_known_again_in_every_form() -> None:
    forms: list[bytes | str] = [
        b"SwordFish",
        "x/swordfish",
        b"swordfish".hex(),
        base64.urlsafe_b64encode(b"?>~swordfish-1"),
    ]
    forms += [base64.b64encode(b"x" * shift + b"swordfish-a") for shift in range(3)]
    forms += ["".join(f"%{ord(sign):02X}" for sign in "swordfish"), "hsifdrows"]
    for form in forms:
        canary = Canary("swordfish")
        canary.look("somewhere", form)
        assert canary.found, form
