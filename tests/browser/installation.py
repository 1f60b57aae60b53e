"""`lcm up` as the browser tests use it: on a folder that outlives a restart, at one port, with people who sign in."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from harness import suite
from harness.commands import SOON, Running, lcm
from harness.servers import free_port

EXAMPLES = suite.ROOT / "examples" / "first"
SPEED = 240


class Installation:
    """A running installation; `stop` and `start` are a restart at the same address."""

    def __init__(self, home: Path, *, first: Sequence[Path], speed: int, settings: Mapping[str, str]) -> None:
        self._home = home
        self._speed = speed
        self._environment = settings
        self._port = free_port()
        self._first = [word for path in first for word in ("--first", path)]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        data = f"--data={self._home / 'data'}"
        self._running = Running(
            self._home,
            "up",
            "--log",
            f"--port={self._port}",
            data,
            f"--speed={self._speed}",
            *self._first,
            **self._environment,
        ).ready()

    def kill(self) -> None:
        """End it without warning."""
        self._running.__exit__()

    def close(self) -> None:
        self._running.__exit__()

    def lcm(self, *words: object) -> str:
        """Run a command in another terminal."""
        done = lcm(self._home, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, method: str, path: str, *, token: str = "", **request: Any) -> Any:
        """Ask the API, as the administrator unless a token says otherwise."""
        answer = self._send(method, path, token, **request)
        return answer.json() if answer.content else None

    def ask_text(self, path: str) -> str:
        """Read something that is not JSON, as the administrator."""
        return self._send("GET", path, "").text

    def reserve_soon(self, token: str, name: str, spec: Mapping[str, Any], *, hours: int) -> None:
        """Reserve for a class that begins in the first minute that is accepted."""
        for minutes in range(1, 15):
            start = datetime.now(UTC) + timedelta(minutes=minutes)
            slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=hours)).isoformat()}
            document = {"metadata": {"name": name}, "spec": {**spec, **slot}}
            try:
                self.ask("POST", "/api/reservations", token=token, json=document)
            except AssertionError as error:
                if "NoRoom" not in str(error):
                    raise
            else:
                return
        raise AssertionError(f"{name} found no room soon")

    def upload(self, path: str, text: str, media: str) -> Any:
        """Send a file as it is, as the administrator."""
        return self._send("POST", path, "", content=text, media=media).json()

    def _send(self, method: str, path: str, token: str, *, media: str = "", **request: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self._running.token}"}
        headers |= {"content-type": media} if media else {}
        with httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=SOON) as client:
            answer = client.request(method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer

    def token(self, name: str, role: str, **more: str) -> str:
        """Make somebody's token; `more` may be a verified address."""
        return str(self.ask("POST", "/api/tokens", json={"name": name, "role": role, **more})["token"])

    def link(self, name: str = "", role: str = "", **more: str) -> str:
        """Make a sign-in link, of the administrator or of somebody else."""
        token = self.token(name, role, **more) if name else ""
        return self.url + str(self.ask("POST", "/api/sign-in", token=token)["path"])

    def wait_for(self, path: str, *, phases: set[str]) -> None:
        """Wait until an object is in one of these phases."""
        deadline = time.monotonic() + SOON
        while (phase := self.ask("GET", path)["status"]["phase"]) not in phases:
            assert time.monotonic() < deadline, f"{path} is still {phase}"
            time.sleep(0.1)


@contextmanager
def run_installation(
    home: Path,
    *,
    examples: bool = True,
    first: Sequence[Path] = (EXAMPLES,),
    speed: int = SPEED,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Installation]:
    """Run an installation until the end of the block, with these settings and what it begins with."""
    it = Installation(home, first=first if examples else (), speed=speed, settings=settings)
    try:
        yield it
    finally:
        it.close()
