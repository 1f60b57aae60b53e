"""The API over TLS: its certificate, a new one, what may not go unencrypted, and clients with their own authority."""

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from harness.servers import Authority
from lcm.compose import process
from lcm.compose.process import ProcessPart, run_embedded
from lcm.control.plane.client import HttpPlane
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, LcmError
from lcm.model.kinds.worker import LabWorker
from lcm.settings.load import Settings, read_configuration
from lcm.system.tls import CertificateFiles, trusted_authority

KEY = Secret("a-key-for-services-of-a-test")


class Files:
    """An authority, and the files of a certificate that it issued."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.certificate, self.key, self.ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
        self.ca.write_bytes(self.authority.pem)
        self.renew()

    def renew(self) -> None:
        certificate, key = self.authority.issue("api")
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)

    def settings(self, folder: Path, **more: object) -> Settings:
        return Settings(data_dir=folder, port=0, tls_cert_file=self.certificate, tls_key_file=self.key, **more)  # type: ignore[arg-type]


@pytest.fixture(name="files")
def make_files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_the_api_is_served_over_tls_on_every_address(files: Files, tmp_path: Path) -> None:
    settings = files.settings(tmp_path / "data", host="0.0.0.0", control_plane_api_key=KEY)
    async with process.serve(settings, [ProcessPart.API]) as it:
        assert it.url.startswith("https://127.0.0.1:")
        trust = trusted_authority(files.ca)
        assert trust is not None
        async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
            answer = await client.get(f"{it.url}/healthz")
        assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")
        async with HttpPlane.open(it.url, KEY, actor="scheduler", trust=trust) as plane:
            assert not (await plane.list(LabWorker)).items
        with pytest.raises(LcmError):
            await HttpPlane.open(it.url, KEY, actor="scheduler").__aenter__()


def serial_of(context: ssl.SSLContext, files: Files) -> int:
    """Shake hands in memory and give the serial number of the certificate that was shown."""
    shown, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(sent, shown, server_side=True)
    trust = ssl.create_default_context(cafile=files.ca)
    client = trust.wrap_bio(shown, sent, server_hostname="api.test")
    for _ in range(4):
        for one in (client, server):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_new_certificate_is_used_and_a_broken_one_is_not(files: Files) -> None:
    read = CertificateFiles(files.certificate, files.key)
    first = serial_of(read.context(), files)
    read.reload()
    assert serial_of(read.context(), files) == first
    files.certificate.write_bytes(b"half a cert")
    read.reload()
    assert serial_of(read.context(), files) == first
    files.renew()
    read.reload()
    assert serial_of(read.context(), files) != first


def test_what_is_no_certificate_stops_the_start_and_is_named(files: Files) -> None:
    files.key.write_bytes(files.authority.issue("other")[1])
    with pytest.raises(Invalid, match="LCM_TLS_CERT_FILE"):
        CertificateFiles(files.certificate, files.key)
    with pytest.raises(Invalid, match="LCM_CA_FILE"):
        trusted_authority(files.key)


async def test_nothing_is_served_unencrypted_beyond_this_machine_unless_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="LCM_HOST"):
        await run_embedded(Settings(data_dir=tmp_path, port=0, host="0.0.0.0")).__aenter__()
    for host in ("127.0.0.1", "localhost"):
        async with run_embedded(Settings(data_dir=tmp_path / host, port=0, host=host)):
            pass


async def test_controllers_send_their_key_unencrypted_only_to_this_machine_unless_that_is_said() -> None:
    settings = Settings(control_plane_api_url="http://control-plane-api:8030", control_plane_api_key=KEY)
    with pytest.raises(Invalid, match="CONTROL_PLANE_API_URL"):
        await process.run_controllers(settings, [ProcessPart.SCHEDULER]).__aenter__()


def test_the_doctor_is_told() -> None:
    said = {"LCM_HOST": "0.0.0.0", "CONTROL_PLANE_API_URL": "http://control-plane-api:8030"}
    assert [one.path for one in read_configuration(said).warnings] == ["LCM_HOST", "CONTROL_PLANE_API_URL"]
    assert not read_configuration(said | {"LCM_CLEARTEXT_ALLOWED": "true"}).warnings


async def test_a_stop_does_not_wait_for_handshakes(files: Files, tmp_path: Path) -> None:
    settings = files.settings(tmp_path / "data")
    async with run_embedded(settings) as it:
        port = int(it.running.url.rpartition(":")[2])
        _, silent = await asyncio.open_connection("127.0.0.1", port)
    silent.close()
