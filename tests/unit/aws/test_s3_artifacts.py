"""S3 that answers badly: every bad answer ends in the right error, and none in "nothing there"."""

import asyncio
import base64
import hashlib
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from aiobotocore.session import AioSession

from harness.http_answers import HANG, Scripted, ScriptedRequest, http
from harness.servers import Authority
from harness.stores import KEY, REGION, SECRET, aws_session
from lcm.model.base.errors import Gone, Invalid, Later, LcmError, Stuck, Throttled, TooLarge, Unreachable
from lcm.providers.aws import s3
from lcm.providers.aws.s3 import S3Artifacts, S3Source
from lcm.providers.aws.s3_calls import S3Connection, S3Limits
from lcm.providers.protocols.artifacts import digest_of

LAB = b"lab: x\n"
URI = f"artifact://{digest_of(LAB)}"
HEX = hashlib.sha256(LAB).hexdigest()
STORED_AT = datetime(2026, 3, 1, 10, 0, 30, tzinfo=UTC)
LATER = datetime(2026, 3, 2, tzinfo=UTC)
HEADERS = {"Last-Modified": "Sun, 01 Mar 2026 10:00:30 GMT", "ETag": '"x"', "x-amz-meta-sha256": HEX}
LAST = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
PAGE = b"""<?xml version="1.0"?>
<ListBucketResult><Name>b</Name><IsTruncated>%s</IsTruncated>%s
<Contents><Key>lcm/tmp/%s</Key><Size>5</Size><LastModified>2026-03-01T10:00:30.000Z</LastModified></Contents>
<Contents><Key>lcm/tmp/Not ours</Key><Size>5</Size><LastModified>2026-03-01T10:00:30.000Z</LastModified></Contents>
</ListBucketResult>"""
HTML = b"<html><body>Sign in to this network</body></html>"
ONCE = S3Limits(attempts=1, at_once=16)
HASTE = S3Limits(attempts=1, at_once=16, silence_seconds=0.2)
THRICE = S3Limits(attempts=3, pause_seconds=0.001)
OK = http(200, LAB, headers=HEADERS)
SEEN = http(200, b"", length=len(LAB), headers=HEADERS)


def fault(status: int, code: str) -> bytes:
    return http(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>x</Message></Error>".encode())


Open = Callable[..., AbstractAsyncContextManager[S3Artifacts]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> AioSession:
    return aws_session(tmp_path_factory.mktemp("aws"))


@pytest.fixture
def artifacts_at(session: AioSession) -> Open:
    return partial(opened, session)


@asynccontextmanager
async def opened(session: AioSession, url: str, *, patience: S3Limits = ONCE) -> AsyncIterator[S3Artifacts]:
    wire = await S3Connection.open(region=REGION, endpoint_url=url, session=session, patience=patience)
    store = S3Artifacts(wire, "bucket", prefix="lcm/", sources=[S3Source(wire, ["labs"])], max_bytes=10_000)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def wire(session: AioSession) -> AsyncIterator[S3Connection]:
    """Make a wire on which nothing will be asked."""
    wire = await S3Connection.open(region=REGION, session=session)
    yield wire
    await wire.close()


async def outcomes(store: S3Artifacts) -> dict[str, object]:
    """Call every verb; return what each answered or raised."""
    calls = {
        "put": store.put(LAB),
        "put_temporary": store.put_temporary("s1", LAB),
        "get": store.get(URI),
        "get temporary": store.get("artifact://tmp/s1"),
        "get source": store.get("s3://labs/a.yaml"),
        "find": store.find(URI),
        "find temporary": store.find("artifact://tmp/s1"),
        "remove": store.remove(URI),
        "remove before": store.remove(URI, before=LATER),
        "list_temporary": store.list_temporary(),
        "list_stored": store.list_stored(before=LATER),
    }
    async with asyncio.timeout(60):
        return dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))


NO_ANSWERS = [
    HANG,
    b"HTTP/1.1 200 OK\r\nContent-Le" + HANG,
    http(200, b"<", length=500) + HANG,
    b"",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    http(200, b"<", length=500, headers={"Last-Modified": "x"}),
    http(200, HTML),
    http(200, b""),
    http(200, b'<?xml version="1.0"?><ListBucketRes'),
    http(200, b'<?xml version="1.0"?><a/>'),
    http(200, b"\x00\xff" * 50),
    http(200, HTML, headers={"Last-Modified": "yesterday"}),
    http(200, HTML, length=-1),
    http(500, HTML),
    http(502, HTML),
    http(504),
    fault(500, "InternalError"),
    fault(400, "RequestTimeout"),
    fault(400, "<b>odd</b>"),
    http(404, HTML),
    http(404),
    fault(500, "NoSuchKey"),
    http(307),
    http(200, b'{"json": true}'),
]
BUSY = [fault(503, "SlowDown"), fault(503, "XMinioServerNotInitialized"), http(503, HTML), http(429)]
REFUSALS = {
    "NoSuchBucket": [fault(404, "NoSuchBucket")],
    "AccessDenied": [fault(403, "AccessDenied"), http(403, HTML), http(403)],
    "Credentials": [
        fault(403, "InvalidAccessKeyId"),
        fault(403, "SignatureDoesNotMatch"),
        fault(400, "ExpiredToken"),
    ],
    "ClockSkew": [fault(403, "RequestTimeTooSkewed")],
    "WrongRegion": [fault(400, "AuthorizationHeaderMalformed"), http(301)],
    "Archived": [fault(403, "InvalidObjectState")],
    "Refused": [fault(418, "Teapot")],
}


async def test_no_answer_or_half_or_a_strangers_is_an_outage_and_never_nothing_there(artifacts_at: Open) -> None:
    async with Scripted(b"") as server, artifacts_at(server.url, patience=HASTE) as store:
        for answer in NO_ANSWERS:
            server.say(answer)
            found = await outcomes(store)
            assert {type(one) for one in found.values()} == {Unreachable}, (answer, found)


async def test_nobody_listening_is_an_outage(artifacts_at: Open) -> None:
    async with Scripted(b"") as server:
        url = server.url
    async with artifacts_at(url) as store:
        found = await outcomes(store)
    assert {type(one) for one in found.values()} == {Unreachable}


async def test_who_asks_us_to_slow_down_is_obeyed(artifacts_at: Open) -> None:
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        for answer in BUSY:
            server.say(answer)
            found = await outcomes(store)
            assert {type(one) for one in found.values()} == {Throttled}, (answer, found)


async def test_what_only_a_person_can_mend_says_why(artifacts_at: Open) -> None:
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        for reason, answers in REFUSALS.items():
            for answer in answers:
                server.say(answer)
                found = await outcomes(store)
                assert {getattr(one, "reason", one) for one in found.values()} == {reason}, (answer, found)
                assert f"s3:GetObject on s3://bucket/lcm/sha256/{HEX}" in str(found["get"])


async def test_a_refusal_is_not_repeated(artifacts_at: Open) -> None:
    async with Scripted(fault(403, "AccessDenied")) as server, artifacts_at(server.url, patience=THRICE) as store:
        for call in (store.get(URI), store.put(LAB), store.remove(URI), store.list_temporary()):
            with pytest.raises(Stuck):
                await call
        assert [asked.method for asked in server.asked] == ["GET", "PUT", "DELETE", "GET"]


async def test_a_bucket_in_another_region_is_followed_once(artifacts_at: Open) -> None:
    elsewhere = http(301, headers={"x-amz-bucket-region": "us-west-2"})
    async with Scripted(elsewhere, OK) as server, artifacts_at(server.url) as store:
        assert await store.get(URI) == LAB
        assert ["/us-west-2/s3/" in asked.headers["authorization"] for asked in server.asked] == [False, True]
    async with Scripted(http(301)) as server, artifacts_at(server.url) as store:
        with pytest.raises(Stuck):
            await store.get(URI)
        assert [asked.path for asked in server.asked] == [f"/bucket/lcm/sha256/{HEX}", "/bucket"]


async def test_denied_access_names_the_missing_permission(artifacts_at: Open) -> None:
    async with Scripted(fault(403, "AccessDenied")) as server, artifacts_at(server.url) as store:
        found = await outcomes(store)
    for verb, action in {
        "put": "s3:PutObject",
        "get": "s3:GetObject",
        "find": "s3:GetObject",
        "remove": "s3:DeleteObject",
        "list_temporary": "s3:ListBucket",
    }.items():
        assert f"allow {action}" in str(found[verb])


async def test_a_full_store_is_worth_another_try_later(artifacts_at: Open) -> None:
    async with Scripted(fault(507, "XMinioStorageFull")) as server, artifacts_at(server.url) as store:
        with pytest.raises(Later, match="is full"):
            await store.put(LAB)


async def test_only_s3s_own_words_mean_that_a_key_is_missing(artifacts_at: Open) -> None:
    missing, bucket = fault(404, "NoSuchKey"), fault(404, "NoSuchBucket")
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        server.say(missing)
        assert await store.find(URI) is None
        assert [asked.method for asked in server.asked] == ["HEAD", "GET"]
        for uri in (URI, "artifact://tmp/s1", "s3://labs/x"):
            with pytest.raises(Gone):
                await store.get(uri)
        for second, error in ((bucket, Stuck), (http(404, HTML), Unreachable), (fault(500, "NoSuchKey"), Unreachable)):
            server.say(http(404), second)
            with pytest.raises(error):
                await store.find(URI)
        server.say(http(404), OK)
        assert await store.find(URI) is not None, "it was stored between the two questions"


async def test_a_passing_fault_is_not_noticed(artifacts_at: Open) -> None:
    half = http(200, LAB[:3], length=7, headers=HEADERS)
    async with Scripted(b"") as server, artifacts_at(server.url, patience=THRICE) as store:
        for bad in (b"", fault(500, "InternalError"), fault(503, "SlowDown"), half):
            server.say(bad, bad, OK)
            assert await store.get(URI) == LAB
            assert len(server.asked) == 3
        for bad in (b"", fault(500, "InternalError"), fault(503, "SlowDown"), fault(400, "BadDigest")):
            server.say(bad, bad, http(200), SEEN)
            stored = await store.put(LAB)
            assert (stored.uri, stored.stored_at) == (URI, STORED_AT)
            assert [(asked.method, asked.body) for asked in server.asked] == [("PUT", LAB)] * 3 + [("HEAD", b"")]


async def test_a_lasting_fault_is_told_after_a_few_attempts(artifacts_at: Open) -> None:
    async with Scripted(http(500)) as server, artifacts_at(server.url, patience=THRICE) as store:
        with pytest.raises(Unreachable):
            await store.find(URI)
        assert len(server.asked) == 3


async def test_a_trickle_is_cut_off(artifacts_at: Open) -> None:
    patience = S3Limits(attempts=1, request_seconds=0.2)
    hanging = http(200, b"lab", length=7, headers=HEADERS) + HANG
    async with Scripted(hanging) as server, artifacts_at(server.url, patience=patience) as store:
        with pytest.raises(Unreachable, match="TimeoutError"):
            await store.get(URI)


async def test_what_is_stored_carries_its_checksum_on_the_wire(artifacts_at: Open) -> None:
    async with Scripted(http(200), SEEN) as server, artifacts_at(server.url) as store:
        await store.put_temporary("a/b:c", LAB)
    put, head = server.asked
    assert (put.method, put.path, put.body) == ("PUT", "/bucket/lcm/tmp/a/b%3Ac", LAB)
    assert put.headers["x-amz-checksum-sha256"] == base64.b64encode(bytes.fromhex(HEX)).decode()
    assert put.headers["x-amz-meta-sha256"] == HEX
    assert "aws-chunked" not in put.headers.get("content-encoding", "")
    assert (head.method, head.path) == ("HEAD", put.path)


async def test_what_was_stored_and_is_not_shown_is_not_acknowledged(artifacts_at: Open) -> None:
    async with Scripted(http(200), http(404), fault(404, "NoSuchKey")) as server, artifacts_at(server.url) as store:
        with pytest.raises(Unreachable):
            await store.put(LAB)


async def test_an_object_that_says_it_is_too_large_is_not_even_begun(artifacts_at: Open) -> None:
    huge = http(200, b"", length=10_001, headers=HEADERS) + HANG
    async with Scripted(huge) as server, artifacts_at(server.url) as store:
        for uri in (URI, "artifact://tmp/s1", "s3://labs/x"):
            with pytest.raises(TooLarge):
                await store.get(uri)


async def test_other_bytes_than_those_stored_are_not_handed_out(artifacts_at: Open) -> None:
    headers = {**HEADERS, "x-amz-meta-sha256": hashlib.sha256(b"other").hexdigest()}
    nameless = {"Last-Modified": HEADERS["Last-Modified"]}
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        for answer in (http(200, LAB, headers=headers), http(200, LAB, headers=nameless)):
            server.say(answer)
            for call in (store.get("artifact://tmp/s1"), store.get("s3://labs/x", digest=digest_of(b"other"))):
                with pytest.raises(Stuck) as stuck:
                    await call
                assert stuck.value.reason == "DigestMismatch"
            assert await store.get("s3://labs/x") == LAB, "others may record what they like"
        server.say(http(200, b"other", headers=HEADERS))
        with pytest.raises(Stuck):
            await store.get(URI)
        server.say(SEEN.replace(HEX.encode(), b"?"))
        with pytest.raises(Stuck):
            await store.find("artifact://tmp/s1")


async def test_a_list_is_read_to_its_end(artifacts_at: Open) -> None:
    pages = [http(200, PAGE % (b"true", token(n), b"s%d" % n)) for n in (1, 2)]
    async with Scripted(*pages, http(200, PAGE % (b"false", b"", b"s3"))) as server, artifacts_at(server.url) as store:
        listed = await store.list_temporary()
    assert [one.uri for one in listed] == [f"artifact://tmp/s{n}" for n in (1, 2, 3)]
    assert {(one.size_bytes, one.stored_at) for one in listed} == {(5, STORED_AT)}
    asked = [asked.path.partition("continuation-token=")[2].partition("&")[0] for asked in server.asked]
    assert asked == ["", "t1", "t2"]


async def test_half_a_list_is_no_list(artifacts_at: Open) -> None:
    first = http(200, PAGE % (b"true", token(1), b"s1"))
    nameless = LAST.replace(b"</L", b"<Contents><Key>lcm/tmp/x</Key></Contents></L")
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        for second, error in (
            (http(500), Unreachable),
            (fault(403, "AccessDenied"), Stuck),
            (http(200, PAGE % (b"true", b"", b"s2")), Unreachable),
            (http(200, nameless), Unreachable),
            (http(200, b""), Unreachable),
        ):
            server.say(first, second)
            with pytest.raises(error):
                await store.list_temporary()


async def test_a_list_without_end_is_given_up(artifacts_at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_PAGES", 3)
    async with Scripted(http(200, PAGE % (b"true", token(1), b"s1"))) as server, artifacts_at(server.url) as store:
        with pytest.raises(Stuck):
            await store.list_temporary()
        assert len(server.asked) == 3


def token(number: int) -> bytes:
    return b"<NextContinuationToken>t%d</NextContinuationToken>" % number


async def test_an_empty_list_is_an_answer(artifacts_at: Open) -> None:
    async with Scripted(http(200, LAST)) as server, artifacts_at(server.url) as store:
        assert await store.list_temporary() == await store.list_stored(before=LATER) == []


async def test_a_sweep_spares_what_was_stored_since(artifacts_at: Open) -> None:
    async with Scripted(b"") as server, artifacts_at(server.url) as store:
        for before, methods in ((STORED_AT, ["HEAD"]), (LATER, ["HEAD", "DELETE"])):
            server.say(SEEN, http(204))
            await store.remove(URI, before=before)
            assert [asked.method for asked in server.asked] == methods


async def test_no_error_shows_a_credential(artifacts_at: Open) -> None:
    def echo(asked: ScriptedRequest) -> bytes:
        told = "".join(f"{name}: {value}\n" for name, value in asked.headers.items())
        text = f"<Error><Code>{told}</Code><Message>{told} {SECRET}</Message></Error>"
        return http(400 + len(shown) % 5, text.encode())

    shown: list[str] = []
    async with Scripted(echo) as server, artifacts_at(server.url) as store:
        for _ in range(5):
            for error in (await outcomes(store)).values():
                assert isinstance(error, LcmError)
                shown += [repr(error), *traceback.format_exception(error)]
    text = "".join(shown)
    assert "s3:GetObject" in text
    assert not [word for word in (KEY, SECRET, "AWS4-HMAC", "Signature=") if word in text]


async def test_without_credentials_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with Scripted(OK) as server, opened(AioSession(), server.url) as store:
        with pytest.raises(Stuck) as stuck:
            await store.get(URI)
        assert (stuck.value.reason, server.asked) == ("Credentials", [])


async def test_a_certificate_of_an_unknown_authority_needs_a_person(artifacts_at: Open, tmp_path: Path) -> None:
    for name, text in zip(("cert", "key"), Authority(tmp_path).issue("s3"), strict=True):
        (tmp_path / name).write_bytes(text)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    async with Scripted(OK, tls=tls) as server, artifacts_at(server.url) as store:
        with pytest.raises(Stuck) as stuck:
            await store.get(URI)
        assert stuck.value.reason == "Certificate"


async def test_no_more_requests_are_made_at_once_than_allowed(artifacts_at: Open) -> None:
    patience = S3Limits(attempts=1, at_once=2)
    async with Scripted(OK) as server, artifacts_at(server.url, patience=patience) as store:
        assert await asyncio.gather(*(store.get(URI) for _ in range(12))) == [LAB] * 12
        assert server.most_at_once <= 2


async def test_only_allowed_buckets_are_read(wire: S3Connection) -> None:
    source = S3Source(wire, ["labs", "shared/course/", "shared/other"])
    for uri in (
        "s3://labs/a.yaml",
        "s3://labs/deep/Übung 1.yaml",
        "s3://labs/a..b",
        "s3://shared/course/a",
        "s3://shared/other/a",
    ):
        assert source.allows(uri)
    for uri in (
        "s3://shared/others/a",
        "s3://shared/a",
        "s3://labs2/a",
        "s3://lab/a",
        "file:///labs/a",
        "artifact://tmp/labs",
        "S3://labs/a",
    ):
        assert not source.allows(uri)


async def test_an_odd_address_is_refused_before_anything_is_asked(artifacts_at: Open) -> None:
    async with Scripted(OK) as server, artifacts_at(server.url) as store:
        for uri in (
            "s3://",
            "s3://labs",
            "s3://labs/",
            "s3:///a",
            "s3://key:secret@labs/a",
            "s3://LABS/a",
            "s3://labs/x/../secret/a",
            "s3://labs/./a",
            "s3://labs/..",
            "s3://labs/a\0",
            "s3://labs/a\n",
            "s3://labs/a\u202e",
            "s3://labs/\ud800",
            "s3://labs/" + "ü" * 513,
        ):
            with pytest.raises(Invalid):
                await store.get(uri)
        assert server.asked == []


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("", ""),
        ("eu central", ""),
        (REGION, f"https://{KEY}:{SECRET}@minio:9000"),
        (REGION, "minio:9000"),
        (REGION, "ftp://minio"),
        (REGION, "http://"),
        (REGION, "http://minio:x"),
        (REGION, "http://minio/bucket"),
        (REGION, "http://minio?x=y"),
    ],
)
async def test_a_bad_endpoint_is_refused_and_not_shown(region: str, url: str) -> None:
    with pytest.raises(Invalid) as refused:
        await S3Connection.open(region=region, endpoint_url=url)
    assert SECRET not in str(refused.value)


async def test_a_bad_bucket_prefix_or_source_is_refused(wire: S3Connection) -> None:
    for bucket, prefix in (
        ("Bucket", ""),
        ("b", ""),
        ("../x", ""),
        ("bucket", "lcm"),
        ("bucket", "../"),
        ("bucket", "/"),
    ):
        with pytest.raises(Invalid):
            S3Artifacts(wire, bucket, prefix=prefix)
    for allowed in ("", "/", "Labs", "labs//x"):
        with pytest.raises(Invalid):
            S3Source(wire, [allowed])
    own: Sequence[str] = ("bucket", "bucket/lcm/", "bucket/lcm/tmp/", "bucket/lcm/sha256", "bucket/lcm/tmp/uid-1/")
    for allowed in own:
        with pytest.raises(Invalid, match="everybody"):
            S3Artifacts(wire, "bucket", prefix="lcm/", sources=[S3Source(wire, [allowed])])
    S3Artifacts(wire, "bucket", prefix="lcm/", sources=[S3Source(wire, ["bucket/labs/", "bucket/lcm/tmp-labs/"])])
