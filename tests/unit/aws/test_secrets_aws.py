"""Secrets Manager that answers badly: each bad answer ends in the right error, and none shows a secret."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, NoRegionError, ParamValidationError, SSLError

from harness.http_answers import HANG, Scripted, http
from harness.servers import LOOPBACK
from harness.stores import REGION, SECRET, HandClock, aws_session
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, LcmError, Stuck, Throttled, Unreachable
from lcm.providers.aws.errors import translate_errors
from lcm.providers.aws.secrets import MAX_CACHED, AwsSecrets

WORD = "swordfish-of-aws"
HTML = b"<html><body>Sign in to this network</body></html>"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> AioSession:
    return aws_session(tmp_path_factory.mktemp("aws"))


def value(**answer: object) -> bytes:
    return http(200, json.dumps({"ARN": "arn:x", "Name": "n", **answer}).encode())


def fault(status: int, code: str) -> bytes:
    return http(status, json.dumps({"__type": code, "message": f"about {WORD}"}).encode())


@asynccontextmanager
async def opened(
    session: AioSession, url: str, clock: HandClock | None = None, *, call_seconds: float = 60
) -> AsyncIterator[AwsSecrets]:
    secrets = AwsSecrets(
        region=REGION,
        clock=clock or HandClock(),
        session=session,
        endpoint_url=url,
        call_seconds=call_seconds,
        allowed=("*",),
    )
    try:
        yield secrets
    finally:
        await secrets.close()


async def failure(secrets: AwsSecrets, ref: str) -> LcmError:
    with pytest.raises(LcmError) as caught:
        await secrets.reveal(ref)
    shown = "".join(traceback.format_exception(caught.value))
    assert WORD not in shown
    assert SECRET not in shown
    return caught.value


@pytest.mark.parametrize(
    ("answer", "want", "reason"),
    [
        (fault(400, "ResourceNotFoundException"), Stuck, "SecretMissing"),
        (fault(400, "InvalidRequestException"), Stuck, "SecretMissing"),
        (fault(400, "InvalidParameterException"), Stuck, "SecretUnreadable"),
        (fault(400, "DecryptionFailure"), Stuck, "SecretUnreadable"),
        (fault(400, "AccessDeniedException"), Stuck, "AccessDenied"),
        (fault(400, "UnrecognizedClientException"), Stuck, "Credentials"),
        (fault(400, "ExpiredTokenException"), Stuck, "Credentials"),
        (fault(403, "InvalidSignatureException"), Stuck, "Credentials"),
        (fault(400, "NobodyHeardOfThisException"), Stuck, "Refused"),
        (fault(400, "ThrottlingException"), Throttled, None),
        (http(429), Throttled, None),
        (fault(500, "InternalServiceError"), Unreachable, None),
        (fault(500, "NobodyHeardOfThisException"), Unreachable, None),
        (http(500, HTML), Unreachable, None),
        (http(404, HTML), Unreachable, None),
        (http(403, HTML), Unreachable, None),
        (http(200, HTML), Unreachable, None),
        (http(200, b"{}"), Unreachable, None),
        (http(200, b"[]"), Unreachable, None),
        (http(200, b'"swordfish-of-aws"'), Unreachable, None),
        (value(SecretString=7), Unreachable, None),
        (http(200, b"{", length=500), Unreachable, None),
        (b"", Unreachable, None),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Unreachable, None),
        (value(SecretString=""), Stuck, "SecretEmpty"),
        (value(SecretBinary="c3dvcmQ="), Stuck, "SecretUnreadable"),
    ],
)
async def test_a_bad_answer_says_what_to_do(
    session: AioSession, answer: bytes, want: type[LcmError], reason: str | None
) -> None:
    async with Scripted(answer) as server, opened(session, server.url) as secrets:
        problem = await failure(secrets, "aws:lcm/token")
    assert type(problem) is want
    assert getattr(problem, "reason", None) == reason
    assert "aws:lcm/token" in str(problem)


async def test_no_answer_is_an_outage(session: AioSession) -> None:
    async with Scripted(HANG) as server, opened(session, server.url, call_seconds=0.1) as secrets:
        assert isinstance(await failure(secrets, "aws:a"), Unreachable)
    async with opened(session, f"http://{LOOPBACK}:1") as secrets:
        assert isinstance(await failure(secrets, "aws:a"), Unreachable)


async def test_without_credentials_a_person_is_needed(tmp_path: Path) -> None:
    session = AioSession()
    session.set_config_variable("credentials_file", str(tmp_path / "none"))
    session.set_config_variable("config_file", str(tmp_path / "none"))
    session.set_config_variable("metadata_service_num_attempts", 0)
    async with opened(session, f"http://{LOOPBACK}:1") as secrets:
        problem = await failure(secrets, "aws:a")
    assert isinstance(problem, Stuck)
    assert problem.reason == "Credentials"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoRegionError(), "Region"),
        (ParamValidationError(report=WORD), "SecretUnreadable"),
        (SSLError(endpoint_url="https://x", error=OSError("CERTIFICATE_VERIFY_FAILED")), "Certificate"),
    ],
)
def test_what_the_library_itself_refuses_needs_a_person(error: BotoCoreError, reason: str) -> None:
    with pytest.raises(Stuck) as caught, translate_errors("secretsmanager:GetSecretValue", "aws:a"):
        raise error
    assert caught.value.reason == reason
    assert WORD not in str(caught.value)


@pytest.mark.parametrize("ref", ["aws:", "aws:#key", "aws:a\nb", "aws:" + "x" * 3000])
async def test_what_is_no_name_is_not_asked_for(session: AioSession, ref: str) -> None:
    async with Scripted(value(SecretString=WORD)) as server, opened(session, server.url) as secrets:
        assert isinstance(await failure(secrets, ref), Stuck)
        assert server.asked == []


@pytest.mark.parametrize(
    ("ref", "reason"),
    [("aws:a#other", "SecretMissing"), ("aws:a#port", "SecretUnreadable"), ("aws:a#none", "SecretEmpty")],
)
async def test_a_key_that_leads_to_no_text_says_why(session: AioSession, ref: str, reason: str) -> None:
    whole = json.dumps({"token": WORD, "port": 5, "none": ""})
    async with Scripted(value(SecretString=whole)) as server, opened(session, server.url) as secrets:
        assert await secrets.reveal("aws:a#token") == Secret(WORD)
        problem = await failure(secrets, ref)
        assert isinstance(problem, Stuck)
        assert problem.reason == reason
        assert len(server.asked) == 1


@pytest.mark.parametrize("whole", [WORD, f'["{WORD}"]', f'{{"token": "{WORD}'])
async def test_a_key_into_what_is_no_object_shows_nothing_of_it(session: AioSession, whole: str) -> None:
    async with Scripted(value(SecretString=whole)) as server, opened(session, server.url) as secrets:
        problem = await failure(secrets, "aws:a#token")
    assert isinstance(problem, Stuck)
    assert problem.reason == "SecretUnreadable"


async def test_an_answer_is_kept_for_a_few_minutes(session: AioSession) -> None:
    clock = HandClock()
    async with (
        Scripted(value(SecretString="old"), value(SecretString="new")) as server,
        opened(session, server.url, clock) as secrets,
    ):
        assert await secrets.reveal("aws:a") == Secret("old")
        clock.step(minutes=4, seconds=59)
        assert await secrets.reveal("aws:a") == Secret("old")
        clock.step(seconds=1)
        assert await secrets.reveal("aws:a") == Secret("new")
        clock.step(minutes=-10)
        assert await secrets.reveal("aws:a") == Secret("new")
        assert len(server.asked) == 3


async def test_a_failure_is_shared_but_soon_forgotten(session: AioSession) -> None:
    clock = HandClock()
    async with (
        Scripted(fault(500, "InternalServiceError")) as server,
        opened(session, server.url, clock) as secrets,
    ):
        results = await asyncio.gather(*(secrets.reveal("aws:a") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, Later) for one in results)
        asked = len(server.asked)
        server.say(value(SecretString=WORD))
        clock.step(seconds=5)
        assert await secrets.reveal("aws:a") == Secret(WORD)
        assert asked == 2, "the library itself tries twice"


async def test_many_who_ask_at_once_make_one_call(session: AioSession) -> None:
    async with Scripted(value(SecretString=WORD)) as server, opened(session, server.url) as secrets:
        assert set(await asyncio.gather(*(secrets.reveal("aws:a") for _ in range(50)))) == {Secret(WORD)}
        assert len(server.asked) == 1


async def test_one_who_gives_up_does_not_take_the_others_along(session: AioSession) -> None:
    async with Scripted(HANG, value(SecretString=WORD)) as server, opened(session, server.url) as secrets:
        first = asyncio.create_task(secrets.reveal("aws:a"))
        async with asyncio.timeout(60):
            while not server.asked:
                await asyncio.sleep(0.005)
        second = asyncio.create_task(secrets.reveal("aws:a"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == Secret(WORD)


async def test_only_secrets_that_are_allowed_by_name_are_asked_for(session: AioSession) -> None:
    async with Scripted(value(SecretString=WORD)) as server:
        url, clock = server.url, HandClock()
        for allowed in ((), ("lcm/*", "shared"), ("LCM/*",)):
            secrets = AwsSecrets(region=REGION, clock=clock, allowed=allowed, session=session, endpoint_url=url)
            for ref in ("aws:prod/database", "aws:prod/database#password", "aws:shared-not", "aws:xlcm/a"):
                with pytest.raises(Stuck, match="SECRET_AWS_ALLOWED") as raised:
                    await secrets.reveal(ref)
                assert raised.value.reason == "SecretNotAllowed"
            await secrets.close()
        assert not server.asked
        secrets = AwsSecrets(region=REGION, clock=clock, allowed=("lcm/*",), session=session, endpoint_url=url)
        assert await secrets.reveal("aws:lcm/cml") == Secret(WORD)
        await secrets.close()


async def test_what_is_kept_has_a_limit(session: AioSession) -> None:
    async with Scripted(value(SecretString=WORD)) as server, opened(session, server.url) as secrets:
        for number in range(MAX_CACHED + 3):
            await secrets.reveal(f"aws:{number}")
        assert len(secrets._cached) == MAX_CACHED
        assert not secrets._asking


async def test_the_most_talkative_log_does_not_show_a_secret(
    session: AioSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Scripted(value(SecretString=WORD)) as server, opened(session, server.url) as secrets:
            await secrets.reveal("aws:a")
    assert WORD not in caplog.text
