"""Consoles in the browser: typed into, drawn, lost and found, looked at by staff, and closed to everybody else."""

import re

from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from browser.browser import DESKTOP, PHONE, Watched, find_axe_faults, is_wider_than_screen, watch
from browser.installation import Installation

LINES = ".xterm-rows"
PICTURE = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Map();
    for (let at = 0; at < data.length; at += 4) {
        const colour = data[at] * 65536 + data[at + 1] * 256 + data[at + 2];
        seen.set(colour, (seen.get(colour) ?? 0) + 1);
    }
    return [...seen.values()].sort((a, b) => b - a);
}"""
"""Counts the points of each colour."""
RAW = """path => new Promise(resolve => {
    const socket = new WebSocket(location.origin.replace("http", "ws") + path);
    socket.onopen = () => resolve("open");
    socket.onclose = () => resolve("refused");
})"""

NOVNC_PATIENCE_MS = 3_500
"""By when noVNC says on the browser's console that a screen did not close."""


def book(installation: Installation, name: str, token: str) -> None:
    """Make a session that runs."""
    session = {"metadata": {"name": name}, "spec": {"definition": "ccna-basics:1.0.0", "duration_minutes": 60}}
    installation.ask("POST", "/api/lablet-sessions", token=token, json=session)
    installation.wait_for(f"/api/lablet-sessions/{name}", phases={"RUNNING"})


def type_line(page: Page, text: str, answer: str) -> None:
    """Type into the console that is shown, and wait for the answer."""
    page.keyboard.type(f"{text}\n")
    expect(page.locator(LINES).filter(visible=True)).to_contain_text(answer)


def is_connected(page: Page, console: str) -> None:
    expect(page.get_by_role("tab", name=console)).to_contain_text("connected")


def test_a_lab_is_booked_typed_into_extended_and_ended(learner: Watched) -> None:
    page = learner.open("/book?lab=ccna-basics:1.0.0")
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.get_by_label("As soon as possible").check()
    page.get_by_label("For how long").select_option("60")
    page.get_by_role("complementary", name="Your booking").get_by_role("button", name="Book").click()
    page.wait_for_url(re.compile("/sessions/ccna-basics-"))
    page.get_by_role("link", name="Open consoles").click()
    is_connected(page, "R1 serial")
    expect(page.locator(LINES)).to_contain_text("R1>")
    type_line(page, "show version", "simulated by the Lablet Cloud Manager")
    page.keyboard.press("Control+Shift+L")
    expect(page.get_by_role("tab", name="R1 serial")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    is_connected(page, "R2 serial")
    type_line(page, "enable", "R2#")
    before = list(sockets)
    assert len(set(before)) == len(("R1", "R2"))
    for tab in ("Story", "Overview"):
        page.get_by_role("link", name=tab).click()
        page.get_by_role("link", name="Consoles", exact=True).click()
        expect(page.locator(LINES).filter(visible=True)).to_contain_text("R2#")
    page.get_by_role("tab", name="R1 serial").click()
    expect(page.locator(LINES).filter(visible=True)).to_contain_text("show version")
    assert sockets == before

    left = page.get_by_text(re.compile("min left|[0-9]:[0-9]{2} left"))
    page.get_by_role("button", name="Extend").click()
    expect(page.get_by_role("dialog")).to_contain_text("instead of")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    expect(page.get_by_text("ends 30 minutes later")).to_be_visible()
    expect(left).to_contain_text("1 h")
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="End it").click()
    expect(page.get_by_text("There are no consoles now")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="The lab as it ended", exact=True).click()
    assert "hostname R2" in download.value.path().read_text()


def test_a_node_of_the_topology_opens_its_screen_which_is_drawn(learner: Watched, installation: Installation) -> None:
    learner.allowed.add("willReadFrequently")  # how this test looks at the picture
    book(installation, "drawn", installation.token("ada", "user"))
    learner.allowed.add("503")
    page = learner.open()
    page.route("**/consoles?*", lambda route: route.fulfill(status=503))
    page.goto(f"{installation.url}/sessions/drawn/topology")
    trouble = page.get_by_role("alert").filter(has_text="Which consoles are open is not known")
    expect(trouble).to_be_visible()
    page.unroute_all()
    trouble.get_by_role("button", name="Try again").click()
    nodes = page.get_by_role("list", name="Nodes")
    expect(nodes.get_by_role("listitem").filter(has_text="SW1")).to_contain_text("Running")
    assert find_axe_faults(page) == []
    nodes.get_by_role("button", name="PC").click()
    is_connected(page, "PC screen")
    screen = page.locator(".place canvas")
    expect(screen).to_be_visible()
    page.wait_for_function(f"() => ({PICTURE})(document.querySelector('.place canvas')).length > 3")
    before = screen.evaluate(PICTURE)
    page.keyboard.type("hello")
    page.wait_for_function(
        "([ink]) => (" + PICTURE + ")(document.querySelector('.place canvas')).at(-1) !== ink", arg=before[-1:]
    )
    page.keyboard.press("Control+Shift+L")
    expect(page.get_by_role("tab", name="PC screen")).to_be_focused()
    assert find_axe_faults(page) == []
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert not is_wider_than_screen(page)
    page.get_by_role("link", name="Observed").click()
    page.get_by_role("button", name="Observe now").click()
    expect(page.get_by_role("row").filter(has_text="Memory")).to_contain_text("GB")
    expect(page.get_by_role("row").filter(has_text="R1_serial")).not_to_contain_text("not yet")
    assert find_axe_faults(page) == []
    assert not is_wider_than_screen(page)
    page.set_viewport_size({"width": DESKTOP["width"], "height": DESKTOP["height"]})
    page.get_by_role("navigation").get_by_role("link", name="sessions").first.click()
    expect(page.locator(".place canvas")).to_have_count(0)
    page.wait_for_timeout(NOVNC_PATIENCE_MS)  # a screen that did not close when it was left says so by then


def test_another_s_session_and_its_consoles_are_not_there(learner: Watched, installation: Installation) -> None:
    learner.allowed.update({"404", "WebSocket connection", "Unexpected response code"})
    book(installation, "bobs", installation.token("bob", "user"))
    page = learner.open("/sessions/bobs/consoles?console=R1_serial")
    expect(page.get_by_text("it is somebody else's")).to_be_visible()
    expect(page.locator(LINES)).to_have_count(0)
    for path in ("bobs/consoles/R1_serial", "bobs/consoles/PC_vnc", "bobs/consoles/R1_serial?look=true"):
        assert page.evaluate(RAW, f"/api/lablet-sessions/{path}") == "refused", path
    status = page.evaluate("async () => (await fetch('/api/lablet-sessions/bobs/topology')).status")
    assert status == 404


def test_a_lost_connection_heals_and_a_revoked_token_ends_it_with_a_word(
    chromium: Browser, installation: Installation
) -> None:
    book(installation, "lost", installation.token("cleo", "user"))
    made = installation.ask("POST", "/api/tokens", json={"name": "cleo", "role": "user"})
    link = installation.url + str(installation.ask("POST", "/api/sign-in", token=made["token"])["path"])
    sockets: list[WebSocketRoute] = []

    def pass_on(route: WebSocketRoute) -> None:
        route.connect_to_server()
        sockets.append(route)

    with watch(chromium, installation.url) as mine:
        mine.allowed.update({"401", "WebSocket"})
        mine.context.route_web_socket(re.compile("/consoles/"), pass_on)
        mine.enter(link)
        mine.context.clock.install()
        page = mine.open("/sessions/lost/consoles")
        is_connected(page, "R1 serial")
        elsewhere = page.get_by_role("button", name="Extend")
        elsewhere.focus()
        # Else it heals before anybody looks; much later it would take the silence for a lost connection.
        page.clock.pause_at(page.evaluate("Date.now()") + 5_000)
        sockets[-1].close(code=1001, reason="stopping")
        expect(page.get_by_text("The server is restarting. Trying again")).to_be_visible()
        page.clock.resume()
        expect(page.locator(LINES)).to_contain_text("connected again")
        expect(elsewhere).to_be_focused()
        page.locator(".xterm-screen").click()
        type_line(page, "enable", "R1#")
        installation.ask("DELETE", f"/api/tokens/{made['info']['id']}")
        told = re.compile("You are no longer signed in here|Your session is over")  # the page follows its console
        expect(page.get_by_text(told).first).to_be_visible()
        expect(page.get_by_role("tab").filter(has_text="connected")).to_have_count(0)


def test_staff_look_along_without_typing_and_the_owner_is_told(
    learner: Watched, staff: Watched, installation: Installation
) -> None:
    book(installation, "watched", installation.token("ada", "user"))
    mine = learner.open("/sessions/watched/consoles")
    is_connected(mine, "R1 serial")
    theirs = staff.open("/sessions/watched/consoles")
    theirs.get_by_role("tab", name="R1 serial").click()
    expect(theirs.get_by_text("This is the lab of ada, who is told")).to_be_visible()
    assert find_axe_faults(theirs) == []
    theirs.get_by_role("button", name="Open R1_serial").click()
    expect(theirs.get_by_role("tab", name="R1 serial")).to_contain_text("looking")
    told = mine.get_by_role("status", name="Who else is here")
    expect(told).to_contain_text("local-admin (admin) looks along at R1_serial.")
    theirs.locator(".xterm-screen").click()
    theirs.keyboard.type("reload\n")
    mine.locator(".xterm-screen").click()
    type_line(mine, "show clock", "show clock")
    expect(theirs.locator(LINES)).to_contain_text("show clock")
    expect(mine.locator(LINES)).not_to_contain_text("reload")
    theirs.get_by_role("button", name="Close").click()
    expect(told).to_have_count(0)
