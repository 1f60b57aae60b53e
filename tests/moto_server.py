"""A moto server for tests: AWS made up on a free port of this machine, in a child process ended by its own handle.

Tests share one per process and keep apart by names: nothing is reset.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from servers import LOOPBACK, READY_SECONDS, answers, free_port

ACCOUNT = "123456789012"
STRANGER = "999999999999"
ROOT_DEVICE = "/dev/xvda"


def image(image_id: str, name: str, created: str, *, owner: str = ACCOUNT) -> dict[str, object]:
    """Describe an image the way moto's files do."""
    return {
        "ami_id": image_id,
        "name": name,
        "creation_date": created,
        "owner_id": owner,
        "public": owner != ACCOUNT,
        "description": name,
        "architecture": "x86_64",
        "hypervisor": "xen",
        "image_location": f"{owner}/{name}",
        "image_type": "machine",
        "platform": None,
        "root_device_name": ROOT_DEVICE,
        "root_device_type": "ebs",
        "sriov": "simple",
        "state": "available",
        "virtualization_type": "hvm",
    }


IMAGES = [
    image("ami-00000000000000a1", "CML-2.8.1", "2025-03-01T12:00:00.000Z"),
    image("ami-00000000000000a3", "CML-2.9.1", "2026-02-01T12:00:00.000Z"),
    image("ami-00000000000000a2", "CML-2.9.0", "2025-09-01T12:00:00.000Z"),
    image("ami-00000000000000a4", "other", "2026-05-01T12:00:00.000Z"),
    image("ami-00000000000000a5", "CML-2.9.9", "2026-06-01T12:00:00.000Z", owner=STRANGER),
]
"""Every region has these; the newest is not the last, and a stranger has published a newer one under our name."""


class MotoServer:
    """One moto server with our images."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> Self:
        """Start and wait until it answers; a port that somebody took first is exchanged."""
        (self._directory / "images.json").write_text(json.dumps(IMAGES))
        for _ in range(5):
            self._spawn()
            if self._await_ready():
                return self
            self._port = free_port()
        raise AssertionError((self._directory / "log").read_text()[-4000:])

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_SECONDS)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self) -> None:
        command = (sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self._port))
        environment = {"PATH": os.environ["PATH"], "MOTO_AMIS_PATH": str(self._directory / "images.json")}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _await_ready(self) -> bool:
        assert self._process is not None
        if answers(self._process, f"{self.url}/moto-api/"):
            return True
        self.stop()
        return False
