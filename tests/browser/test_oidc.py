"""Signing in at a provider in a real browser, across sites, and signing out there as well."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.browser import Watched, find_axe_faults, watch
from browser.installation import Installation, run_installation
from harness.provider import CLIENT_ID, Provider, run_provider

SECRET = "hush-provider"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider("localhost", client_secret=SECRET) as it:
        yield it


@pytest.fixture(scope="module")
def installation(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    settings = {
        "OIDC_ISSUER": provider.url,
        "OIDC_AUDIENCE": "lcm",
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": SECRET,
        "OIDC_PROVIDER_NAME": "Example School",
        "OIDC_END_SESSION": "true",
    }
    with run_installation(tmp_path_factory.mktemp("oidc"), examples=False, settings=settings) as it:
        yield it


@pytest.fixture
def visitor(chromium: Browser, installation: Installation, provider: Provider) -> Iterator[Watched]:
    """A browser that is not signed in, which the provider may be shown in."""
    with watch(chromium, installation.url) as it:
        it.allowed.update({"401", "favicon"})
        it.places.add(provider.url)
        yield it


def choose(page: Page, who: str) -> None:
    """Go to the provider, and say there who one is."""
    page.get_by_role("link", name="Sign in with Example School").click()
    expect(page.get_by_text("Who are you?")).to_be_visible()
    page.get_by_role("button", name=who).click()


def test_who_signs_in_at_the_provider_sees_the_page_that_was_wanted_until_they_sign_out(
    visitor: Watched, provider: Provider
) -> None:
    page = visitor.open("/workers?phase=READY")
    expect(page.get_by_role("link", name="Sign in with Example School")).to_be_visible()
    assert not find_axe_faults(page)
    choose(page, "Ada, operator")
    expect(page.get_by_role("heading", name="Workers", level=1)).to_be_visible()
    assert page.url == f"{visitor.url}/workers?phase=READY"
    expect(page.get_by_text("ada@example.org")).to_be_visible()
    kept = {one["name"]: one for one in visitor.context.cookies(visitor.url)}
    assert kept["lcm_session"]["httpOnly"]
    assert kept["lcm_session"]["sameSite"] == "Strict"
    assert "lcm_sign_in" not in kept
    page.reload()
    expect(page.get_by_role("heading", name="Workers", level=1)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Signed out at the school")).to_be_visible()
    assert "/end" in provider.asked
    page.goto(visitor.url)
    expect(page.get_by_role("link", name="Sign in with Example School")).to_be_visible()


def test_who_is_not_let_in_is_told_why_in_plain_words(visitor: Watched) -> None:
    page = visitor.open("/")
    choose(page, "Cancel")
    expect(page.get_by_role("alert")).to_contain_text("it was cancelled, or the provider declined")
    assert not find_axe_faults(page)
    choose(page, "Eve, guest")
    expect(page.get_by_role("alert")).to_contain_text("you have no role here")
    choose(page, "Bob, learner")
    expect(page.get_by_text("bob@example.org")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Workers")).to_have_count(0)
    assert "sign_in" not in page.url
