"""The dashboard in a real browser, see test_dashboard.py. Runs under the Python of target/browser, with playwright:

    python -m harness.dashboard FOLDER TCP_PORT STEP...
    python -m harness.dashboard FOLDER TCP_PORT --pictures FOLDER

FOLDER has the daemon's admin.sock, token, read-token and nbd.sock. What the test is to do with the daemon is written to
`wanted` there: `stop` or `start`; the test makes `done` when it is done."""

import argparse
import contextlib
import itertools
import random
import re
import shutil
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

from .nbd import READ, WRITE, Client

BLOCK, BLOCKS, READS = 4096, 65_000, 0.8
# Controls that are to be seen and have no name for who does not see them.
UNNAMED = """
[...document.querySelectorAll("button, input, select, a")]
  .filter((one) => one.checkVisibility() && !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
  .map((one) => one.outerHTML)
"""
HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""
# What moved by itself, and by how much.
SHIFTS = """
window.shift = 0; window.moved = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries().filter((entry) => !entry.hadRecentInput)) {
    window.shift += entry.value;
    window.moved.push(...entry.sources.map(({ node }) => node?.id || node?.className || node?.nodeName));
  }
}).observe({ type: "layout-shift", buffered: true });
"""
# The words that each canvas shows.
CANVAS_WORDS = """
const words = new WeakMap();
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...where) {
  words.set(this.canvas, []);
  return clearRect.apply(this, where);
};
CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
  if (!words.has(this.canvas)) words.set(this.canvas, []);
  words.get(this.canvas).push(text);
  return fillText.call(this, text, ...where);
};
window.wordsOf = (chart) => words.get(chart.querySelector("canvas")) ?? [];
"""
# Of each chart that has a plot: its title, the labels of its axes, the edges of its plot in its card, and its cursor.
PLOTS = """
[...document.querySelectorAll("#charts .chart")].filter((chart) => chart.querySelector("canvas")).map((chart) => {
  const [card, over] = [chart, chart.querySelector(".u-over")].map((part) => part.getBoundingClientRect());
  return { title: chart.querySelector("figcaption").firstChild.textContent, labels: window.wordsOf(chart),
    edges: [over.left - card.left, over.right - card.left, over.top - card.top].map(Math.round),
    cursor: chart.querySelector(".u-cursor-x").style.transform };
})
"""
TIME = re.compile(r"\d\d:\d\d(:\d\d)?")
# What a browser writes into its console by itself when an answer is an error, or there is none.
OF_THE_BROWSER = re.compile(r"Failed to load resource: (net::ERR_|the server responded with a status of 401)")
STEPS = ("tokens", "figures", "alarms", "hidden", "restart", "widths")
WITHIN_MS = 60_000
PICTURES_AFTER_MS = 90_000


def say(words: str) -> None:
    print(f"- {words}", flush=True)


class Load(threading.Thread):
    """Reads and writes of a volume, most of them in a small part of it, until it is stopped."""

    def __init__(self, path: Path, export: str, length: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(str(path), export)
        self.length = length
        self.ends = threading.Event()

    def run(self) -> None:
        chance = random.Random(1)
        with contextlib.suppress(Exception):  # the daemon is restarted under it
            while not self.ends.wait(0.001):
                at = int(chance.paretovariate(0.5) * 16) % BLOCKS * BLOCK
                if chance.random() < READS:
                    self.client.call(READ, at, self.length)
                else:
                    self.client.call(WRITE, at, self.length, bytes(self.length))


class Forward(threading.Thread):
    """A port of loopback that leads to a unix socket, as `ssh -L` makes one."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.path))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Stage:
    """A browser, and what its pages did wrong."""

    def __init__(self, browser: Browser, folder: Path, port: int) -> None:
        self.browser, self.folder, self.port = browser, folder, port
        self.wrong: list[str] = []
        self.requests: list[Request] = []

    @contextlib.contextmanager
    def page(self, port: int, *, dark: bool = False, width: int = 1280, at: str = "") -> Iterator[Page]:
        context = self.browser.new_context(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        page = context.new_page()
        page.on("console", lambda said: self.said(said.type, said.text))
        page.on("pageerror", lambda error: self.wrong.append(f"an exception: {error}"))
        page.on("request", self.requested)
        page.add_init_script(SHIFTS + CANVAS_WORDS)
        page.goto(f"http://localhost:{port}/ui/{at}" if at else f"http://localhost:{port}/")
        yield page
        context.close()
        self.check()

    def every_look(self, port: int, after_ms: int = 300, at: str = "") -> Iterator[tuple[Page, bool, int]]:
        """The page in light and dark, wide and narrow, all at once; each a while after it was live."""
        with contextlib.ExitStack() as pages:
            looks = []
            for dark, width in itertools.product((False, True), (1280, 390)):
                looks.append((pages.enter_context(self.page(port, dark=dark, width=width, at=at)), dark, width))
            for page, _, _ in looks:
                is_live(page)
            looks[0][0].wait_for_timeout(after_ms)
            yield from looks

    def said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not OF_THE_BROWSER.match(text):
            self.wrong.append(f"in the console: {text}")

    def requested(self, request: Request) -> None:
        self.requests.append(request)
        if not re.match(r"(http://localhost:\d+/|data:)", request.url):
            self.wrong.append(f"another host is asked: {request.url}")

    def check(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)

    def token(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def sign_in(self, page: Page, token: str) -> None:
        page.locator("#token").fill(token)
        page.get_by_role("button", name="sign in").click()

    def api(self, method: str, path: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method, data=body)
        request.add_header("Authorization", f"Bearer {self.token('token')}")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("live", timeout=WITHIN_MS)


def tile(page: Page, name: str) -> str:
    return page.locator(".tile", has=page.get_by_text(name, exact=True)).locator("strong").inner_text()


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_MS / 1000
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def rows(page: Page) -> Locator:
    return page.locator("#volume-table tbody tr")


# The order of volumes with these loads, alarms and lost bytes, then with other loads; and the one that is shown first.
RANKS = """
import("/ui/rank.js").then(({ Ranking }) => {
  const ranking = new Ranking();
  const look = (loads) => ranking.take({
    alarms: [["warned", "warning"], ["absent", "error"], [null, "error"]]
      .map(([volume, severity]) => ({ volume, severity })),
    volumes: Object.keys(loads).map((name) => (
      { name, state: name === "absent" ? "absent" : "serving", lost_bytes: name === "lossy" ? 512 : 0 })),
    volume_rates: Object.fromEntries(Object.entries(loads).map(([name, reads_per_s]) => [name, { reads_per_s }])),
  });
  const orders = [];
  look({ idle: 0, calm: 10, busy: 100, warned: 5, lossy: 1, absent: 0 });
  orders.push(ranking.names.join(" "), ranking.first(null), ranking.first("busy"), ranking.first("lossy"));
  look({ calm: 120, busy: 100, idle: 0 });
  orders.push(ranking.names.join(" "), ranking.first("lossy"), ranking.first("calm"), ranking.first("idle"));
  look({ calm: 500, busy: 100, idle: 0 });
  orders.push(ranking.names.join(" "));
  return orders;
})
"""


def order(page: Page) -> None:
    say("volumes in trouble come first, then the busiest; equals do not change places")
    first = ["lossy absent warned busy calm idle", "lossy", "lossy", "lossy"]
    second = ["busy calm idle", "busy", "calm", "busy"]
    assert page.evaluate(RANKS) == [*first, *second, "calm busy idle"]


def charts(page: Page) -> None:
    say("charts have distinct ticks, the same edges, and one axis of time")
    plots = page.evaluate(PLOTS)
    assert len(plots) == 6, plots
    for plot in plots:
        labels = plot["labels"]
        assert len(labels) >= 4 and len(set(labels)) == len(labels), plot
    assert len({tuple(plot["edges"]) for plot in plots}) == 1, plots
    times = {plot["title"]: [label for label in plot["labels"] if TIME.fullmatch(label)] for plot in plots}
    assert times.pop("Miss-ratio curve") == [], plots
    assert len(set(map(tuple, times.values()))) == 1 and all(times.values()), times
    page.locator("#charts .u-over").first.hover()
    cursors = {plot["cursor"] for plot in page.evaluate(PLOTS) if plot["title"] in times}
    assert len(cursors) == 1 and cursors != {""}, cursors
    for splits, labels in {
        "count([0, 0.25, 0.5, 0.75, 1])": ["0.00", "0.25", "0.50", "0.75", "1.00"],
        "percent([0, 0.0005, 0.001])": ["0.00 %", "0.05 %", "0.10 %"],
        "bytes([0, 524288, 1048576])": ["0.0 MiB", "0.5 MiB", "1.0 MiB"],
        "micros([100, null, 1000, 10000])": ["100 µs", None, "1 ms", "10 ms"],
    }.items():
        assert page.evaluate(f"import('/ui/format.js').then(({{ ticks }}) => ticks.{splits})") == labels, splits


def tokens(stage: Stage) -> None:
    say("without a token, with a wrong one, and with the one to look")
    with stage.page(stage.port) as page:
        expect(page.get_by_role("dialog")).to_be_visible(timeout=WITHIN_MS)
        assert rows(page).count() == 0, "something is shown without a token"
        stage.sign_in(page, "wrong" * 8)
        expect(page.get_by_role("alert")).to_be_visible(timeout=WITHIN_MS)
        expect(page.get_by_role("alert")).not_to_be_empty(timeout=WITHIN_MS)
        stage.sign_in(page, stage.token("read-token"))
        is_live(page)
        assert stage.token("read-token") not in page.content() + page.url, "the token is in the page"
        expect(page.locator("#changes")).to_be_hidden()
        expect(page.locator(".jobs button:visible, .alarms button:visible")).to_have_count(0)
        page.reload()
        is_live(page)
        page.get_by_role("button", name="forget the token").click()
        expect(page.get_by_role("dialog")).to_be_visible(timeout=WITHIN_MS)


def figures(page: Page) -> None:
    say("live figures of 64 volumes, in charts and in the table; the busiest is the first")
    is_live(page)
    expect(rows(page)).to_have_count(64)
    expect(rows(page).first).to_contain_text("db")
    expect(page.get_by_role("heading", name="Volume db")).to_be_visible()
    for name in ("read latency", "write latency"):
        expect(page.get_by_role("columnheader", name=name)).to_be_visible()
    eventually("no reads are shown", lambda: tile(page, "reads") not in ("-", "0/s"))
    seen = {tile(page, "reads")}
    eventually("figures stand still", lambda: len(seen.add(tile(page, "reads")) or seen) > 1)  # type: ignore[func-returns-value]
    assert re.fullmatch(r"[0-9.]+ %", tile(page, "hits")), tile(page, "hits")
    expect(page.locator("#charts canvas")).to_have_count(6, timeout=WITHIN_MS)
    expect(
        page.get_by_role("img", name=re.compile(r"Latency by path: read hit [0-9]+ µs|Latency by path: read hit .* ms"))
    ).to_be_visible()
    expect(page.locator("#charts")).to_contain_text("limited by: ")
    expect(page.locator(".card").first).to_contain_text("endurance budget: ")
    expect(page.locator(".card").first).to_contain_text("lasts: ")
    # The latency has come, and each chart has been drawn with it.
    page.wait_for_timeout(2500)
    charts(page)
    order(page)
    say("keys: filter, order and choice")
    page.get_by_label("filter").fill("v3")
    expect(rows(page)).to_have_count(10)
    page.get_by_label("filter").fill("")
    page.get_by_role("columnheader", name="reads/s").get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(rows(page).first).to_contain_text("db")
    page.get_by_role("link", name="v07").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Volume v07")).to_be_visible()
    say("a choice is kept, and the span of time as well")
    page.wait_for_timeout(4500)
    expect(page.get_by_role("heading", name="Volume v07")).to_be_visible()
    plots = page.evaluate(PLOTS)
    times = {tuple(label for label in plot["labels"] if TIME.fullmatch(label)) for plot in plots} - {()}
    assert len(times) == 1, plots
    page.get_by_role("link", name="fast", exact=True).click()
    expect(page.get_by_role("heading", name="Pool fast")).to_be_visible()
    page.get_by_role("link", name="db", exact=True).click()
    unnamed = page.evaluate(UNNAMED)
    assert unnamed == [], f"without a name: {unnamed}"


def alarms_and_jobs(stage: Stage, page: Page) -> None:
    say("an alarm appears; foreign text stays text; a job is cancelled by who may")
    job = page.locator(".jobs li").filter(has_text="flush of db")
    cancel = page.get_by_role("button", name="cancel flush of db")
    expect(page.locator("#alarm-bar")).to_contain_text("no alarms")
    expect(page.locator("#icon")).to_have_attribute("href", "icon.svg")
    link = page.get_by_role("link", name="v07")
    link.hover()
    before = link.bounding_box()
    stage.api("POST", "/v1/volumes/db/flush")
    stage.api("DELETE", "/v1/volumes/old?how=keep")
    expect(page.locator("#alarms-count")).to_have_text("1 alarm")
    expect(page.locator("#alarms-first")).to_contain_text("volume.absent of old")
    assert link.bounding_box() == before, "an alarm moves a link that is pointed at"
    expect(page.locator("#icon")).to_have_attribute("href", "icon-alarm.svg")
    expect(page.locator("#alarms")).to_be_hidden()
    page.locator("#alarms-toggle").click()
    expect(page.locator("#alarms")).to_be_visible()
    expect(rows(page).first).to_contain_text("old")
    expect(page.get_by_role("heading", name="Volume db")).to_be_visible()
    expect(page.locator(".alarms")).to_contain_text("volume.absent", timeout=WITHIN_MS)
    expect(job).to_be_visible(timeout=WITHIN_MS)
    assert "(1)" in page.title(), page.title()
    some = [page.get_by_role("button", name=name, exact=True) for name in ("acknowledge", "cancel jobs")]
    for button in (cancel, *some, page.get_by_role("button", name="acknowledge volume.absent")):
        expect(button).to_be_disabled()
    page.get_by_label("allow changes").check()
    for button in some:
        expect(button).to_be_enabled()
    page.get_by_role("button", name="cancel jobs").click()
    expect(page.get_by_label("flush of db (")).to_be_checked()
    page.get_by_role("button", name="leave it").click()
    cancel.click()
    page.get_by_role("button", name="leave it").click()
    expect(job).not_to_contain_text("cancelled")
    mischief = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%22%26"
    alarm = page.evaluate("fetch('/v1/alarms').then((answer) => answer.json()).then((all) => all.alarms[0].id)")
    stage.api("POST", f"/v1/alarms/{alarm}/acknowledge?by={mischief}")
    cancel.click()
    page.get_by_role("button", name="cancel the job").click()
    expect(job).to_contain_text("cancelled", timeout=WITHIN_MS)
    expect(page.locator(".alarms")).to_contain_text('acknowledged by <img src=x onerror=alert(1)>"&', timeout=WITHIN_MS)
    expect(page.locator(".events")).to_contain_text("acknowledged by <img src=x", timeout=WITHIN_MS)
    assert page.locator("img").count() == 1, "foreign text became markup"


def no_tab(stage: Stage, page: Page) -> None:
    say("a hidden tab asks nothing; one that is seen again does, two times in two seconds at most")
    page.evaluate(HIDE, True)
    for _ in range(4):  # what is under way ends first
        stage.requests.clear()
        page.wait_for_timeout(2200)
        if not stage.requests:
            break
    assert stage.requests == [], f"a hidden tab asks: {[request.url for request in stage.requests]}"
    page.evaluate(HIDE, False)
    is_live(page)
    page.wait_for_timeout(500)
    stage.requests.clear()
    began = time.monotonic()
    page.wait_for_timeout(2400)
    asked, seconds = [request.url for request in stage.requests], time.monotonic() - began
    assert len(asked) <= 2 * seconds + 0.2, f"in {seconds:.1f} seconds: {asked}"
    until = time.monotonic() + WITHIN_MS / 1000
    while len(stage.requests) < 2:
        assert time.monotonic() < until, "it asks no more"
        page.wait_for_timeout(100)


def daemon(stage: Stage, wanted: str) -> None:
    """The test stops or starts the daemon."""
    done = stage.folder / "done"
    done.unlink(missing_ok=True)
    new = stage.folder / "wanted.new"
    new.write_text(wanted)
    new.rename(stage.folder / "wanted")
    eventually(f"the daemon did not {wanted}", done.exists)


def restart(stage: Stage, page: Page) -> None:
    say("a daemon that is gone is said to be, since when, and found again")
    daemon(stage, "stop")
    expect(page.locator("#connection")).to_have_text(re.compile("[0-9]+:[0-9]+"), timeout=WITHIN_MS)
    daemon(stage, "start")
    is_live(page)


def widths(stage: Stage, port: int) -> None:
    say("light and dark, wide and narrow, each with the alarm in its first screen")
    stage.api("DELETE", "/v1/volumes/old?how=keep")
    colours = set()
    for page, _, width in stage.every_look(port):
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"at {width} px the page is {over} px too wide"
        expect(page.locator("#alarms-count")).to_have_text("1 alarm")
        bar = page.locator("#alarm-bar").bounding_box()
        assert bar is not None and bar["y"] + bar["height"] < 200 and bar["width"] == width, bar
        shift, moved = page.evaluate("[window.shift, window.moved]")
        assert shift < 0.05, f"at {width} px what is there moves by {shift} while the page loads: {moved}"
    assert len(colours) == 2, colours


def pictures(stage: Stage, port: int, folder: Path) -> None:
    """What the documentation shows: under load, with a job and an alarm."""
    folder.mkdir(parents=True, exist_ok=True)
    stage.api("DELETE", "/v1/volumes/old?how=keep")
    looks = stage.every_look(port, PICTURES_AFTER_MS, "#volume=db")
    for number, (page, dark, width) in enumerate(looks):
        if number == 0:
            stage.api("POST", "/v1/volumes/db/flush")
            page.wait_for_timeout(5000)
        page.screenshot(path=folder / f"dashboard-{width}-{'dark' if dark else 'light'}.png", full_page=True)


def steps(stage: Stage, port: int, wanted: list[str]) -> None:
    if "tokens" in wanted:
        tokens(stage)
    on_a_page: dict[str, Callable[[Page], None]] = {
        "figures": figures,
        "alarms": lambda page: alarms_and_jobs(stage, page),
        "hidden": lambda page: no_tab(stage, page),
        "restart": lambda page: restart(stage, page),
    }
    if any(step in wanted for step in on_a_page):
        with stage.page(port) as page:
            is_live(page)
            for name, step in on_a_page.items():
                if name in wanted:
                    step(page)
    if "widths" in wanted:
        widths(stage, port)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    if not set(options.steps) <= set(STEPS):  # `choices` refuses no steps at all
        parser.error(f"no such step: {' '.join(options.steps)}")
    forward = Forward(options.folder / "admin.sock")
    forward.start()
    names = ["db", "logs", "mail"] if options.pictures else ["db"]
    length = 16 * BLOCK if options.pictures else BLOCK
    loads = [Load(options.folder / "nbd.sock", name, length) for name in names]
    for load in loads:
        load.start()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        # Root has no sandbox, and no other pages are opened.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stage = Stage(browser, options.folder, options.port)
        if options.pictures:
            pictures(stage, forward.port, options.pictures)
        else:
            steps(stage, forward.port, options.steps)
        for load in loads:
            load.ends.set()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
