"""The artifacts of a process as its settings say: a folder or a bucket, and what definitions may read besides."""

from pathlib import Path
from uuid import uuid4

import pytest
from aiobotocore.session import AioSession
from msgspec.structs import replace

from harness.servers import MotoServer
from harness.stores import KEY, REGION, SECRET
from lcm.cli.fleet import doctor
from lcm.cli.fleet.doctor import CheckState
from lcm.compose.outside import artifact_store
from lcm.compose.process import run_embedded
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid
from lcm.settings.checks import find_contradictions, find_warnings
from lcm.settings.load import Settings

LAB = b"lab: {version: 0.3.0}\n"
BUCKET, ELSEWHERE = f"b-{uuid4().hex}", f"labs-{uuid4().hex}"


async def test_files_are_kept_in_the_data_folder_from_when_somebody_keeps_one(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    async with artifact_store(settings) as artifacts:
        assert not (tmp_path / "data").exists()
        stored = await artifacts.put(LAB)
    async with artifact_store(settings) as artifacts:
        assert await artifacts.get(stored.uri) == LAB
    assert (tmp_path / "data" / "artifacts" / "sha256").is_dir()


async def test_a_definition_reads_files_of_the_folders_that_were_allowed_only(tmp_path: Path) -> None:
    (tmp_path / "labs").mkdir()
    for folder in (tmp_path / "labs", tmp_path):
        (folder / "lab.yaml").write_bytes(LAB)
    settings = Settings(
        data_dir=tmp_path / "data", artifacts_dir=tmp_path / "kept", artifacts_file_dirs=(tmp_path / "labs",)
    )
    async with artifact_store(settings) as artifacts:
        assert await artifacts.get((tmp_path / "labs" / "lab.yaml").as_uri()) == LAB
        for uri in ((tmp_path / "lab.yaml").as_uri(), "s3://labs/lab.yaml"):
            with pytest.raises(Invalid, match="may not be read"):
                await artifacts.get(uri)
    assert (tmp_path / "kept" / "sha256").is_dir()


async def test_files_are_kept_in_a_bucket_and_read_from_those_that_were_allowed(
    moto: MotoServer, tmp_path: Path
) -> None:
    session = AioSession()
    session.set_credentials(KEY, SECRET)
    async with session.create_client("s3", region_name=REGION, endpoint_url=moto.url) as client:
        for bucket in (BUCKET, ELSEWHERE):
            await client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        await client.put_object(Bucket=ELSEWHERE, Key="ccna/lab.yaml", Body=LAB)
    settings = Settings(
        data_dir=tmp_path / "data",
        aws_region=REGION,
        aws_access_key_id=Secret(KEY),
        aws_secret_access_key=Secret(SECRET),
        artifacts_s3_bucket=BUCKET,
        artifacts_s3_prefix="lcm/",
        artifacts_s3_endpoint=moto.url,
        artifacts_s3_allowed=(f"{ELSEWHERE}/ccna/",),
    )
    async with artifact_store(settings) as artifacts:
        stored = await artifacts.put_temporary("uid-1/lab.yaml", LAB)
        assert await artifacts.get(stored.uri) == LAB
        assert [one.uri for one in await artifacts.list_temporary()] == [stored.uri]
        assert await artifacts.get(f"s3://{ELSEWHERE}/ccna/lab.yaml") == LAB
        with pytest.raises(Invalid, match="may not be read"):
            await artifacts.get(f"s3://{BUCKET}/lcm/tmp/uid-1/lab.yaml")
    assert not (tmp_path / "data").exists()
    (well,) = await doctor.check_artifacts(settings)
    assert (well.state, well.detail) == (CheckState.OK, f"s3://{BUCKET}/lcm/ answers")
    (missing,) = await doctor.check_artifacts(replace(settings, artifacts_s3_bucket=f"{BUCKET}-other"))
    assert missing.state is CheckState.FAIL
    assert "no such bucket" in missing.detail


async def test_controllers_are_given_the_artifacts_of_their_installation(tmp_path: Path) -> None:
    async with run_embedded(Settings(data_dir=tmp_path, port=0), controllers=()) as it:
        stored = await it.outside.artifacts.put(LAB)
        found = await it.outside.artifacts.find(stored.uri)
        assert found is not None
        assert found.digest == stored.digest
        assert [one.uri for one in await it.outside.artifacts.list_temporary()] == []
        await it.outside.artifacts.remove(stored.uri)
        assert await it.outside.artifacts.list_stored(before=stored.stored_at) == []


@pytest.mark.parametrize("folder", [".", "data", "data/artifacts", "kept", "kept/tmp"])
def test_a_folder_that_holds_everybodys_data_is_never_allowed(tmp_path: Path, folder: str) -> None:
    settings = Settings(
        data_dir=tmp_path / "data", artifacts_dir=tmp_path / "kept", artifacts_file_dirs=(tmp_path / folder,)
    )
    assert [fault.path for fault in find_contradictions(settings, ())] == ["ARTIFACTS_FILE_DIRS"]


def test_a_folder_beside_a_bucket_is_doubted() -> None:
    settings = Settings(artifacts_dir=Path("kept"), artifacts_s3_bucket=BUCKET)
    assert [fault.path for fault in find_warnings(settings)] == ["ARTIFACTS_DIR"]
