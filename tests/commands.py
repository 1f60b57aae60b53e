"""`lcm` as a person or an operator runs it: a process of its own, a folder, a context, signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

SOON = 60
COMMAND = (sys.executable, "-m", "lcm.cli.main")
_OURS = ("LCM_", "ETCD_", "XDG_", "CONTROL_PLANE_")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Make an environment that knows nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "XDG_CONFIG_HOME": str(home / "config"), "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **more}


def lcm(home: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
        check=False,
    )


class Running:
    """A command that runs until it is told to stop. Use it as a context manager: nothing is left behind."""

    def __init__(self, home: Path, *arguments: object, **more: str) -> None:
        self.home = home
        self.url = ""
        self._output = (home / f"output-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(home, **more),
        )

    @property
    def output(self) -> str:
        """Everything that it has written."""
        return Path(self._output.name).read_text()

    @property
    def token(self) -> str:
        """The token in the current context."""
        book: Any = msgspec.yaml.decode((self.home / "config" / "lcm" / "contexts.yaml").read_bytes())
        return str(book["contexts"][book["current"]]["token"])

    def ready(self) -> Self:
        """Wait until it says where it is and can serve requests."""
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r" at (http://[0-9.]+:\d+)", self.output)
            if found and _is_ready(found[1]):
                self.url = found[1]
                return self
            time.sleep(0.01)
        raise AssertionError(self.output)

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Make a client that is signed in: with a token, else with that of the current context."""
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=SOON)

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, float]:
        """Ask it to end; returns its exit code and how long it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(SOON), time.monotonic() - begun

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()


def up(home: Path, *arguments: object, **more: str) -> Running:
    """Start `lcm up` on a free port and on a folder that is kept from one start to the next."""
    return Running(home, "up", "--port=0", f"--data={home / 'data'}", *arguments, **more)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
