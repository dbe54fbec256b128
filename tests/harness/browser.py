"""A real browser: the machine's Chromium, driven by Playwright, with an eye on what its pages complain of."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NARROW_PX = 640  # a window that is narrower is one of a phone, with touch
# Pages of the browser's own window, for each of which it starts a process. A second list of features replaces
# Playwright's, of which these tests need the rest.
UNUSED = (
    *("WebUIOmniboxPopup", "OmniboxAimPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup"),
    *("PaintHolding", "HttpsUpgrades", "MediaRouter", "OptimizationHints", "PreconnectToSearch"),
)
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", f"--disable-features={','.join(UNUSED)}")
PATIENCE_MS = 60_000  # only keeps a failure from hanging
COMPLAINTS = ("error", "warning")
# Going back is not done at once: let the page take the step.
ONE_TURN = "new Promise((done) => setTimeout(done))"
TELL_REFUSALS = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`refused by policy: ${event.violatedDirective} ${event.blockedURI}`))"""

FAILED = pytest.StashKey[bool]()
"""Of a test of the console: whether it has failed, for the fixtures that tidy up after it."""

# Texts that are seen, with their contrast to what lies behind them, where it is below 4.5 (WCAG 2.2, 1.4.3).
FAINT_TEXTS = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const hasText = (element) => [...element.childNodes].some(isText);
  const contrast = (element) => {
    const { fill, color } = getComputedStyle(element);
    const own = light(element instanceof SVGElement ? fill : color);
    const other = light(behind(element));
    return (Math.max(own, other) + 0.05) / (Math.min(own, other) + 0.05);
  };
  return [...document.querySelectorAll("body *")]
    .filter((element) => element.checkVisibility() && hasText(element))
    .map((element) => [element.textContent.trim().slice(0, 40), contrast(element)])
    .filter(([, found]) => found < 4.5);
}"""


def chromium() -> str:
    """The path of the browser; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs a browser: apt install chromium")
    return found


@contextmanager
def browsing(*flags: str) -> Iterator[Browser]:
    """A browser until the end of the block; `flags` are Chromium's own."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


_idle: WeakKeyDictionary[Browser, dict[bool, Page]] = WeakKeyDictionary()
"""Empty windows of each browser, by whether they are narrow: a new one takes as long as a page to load."""


@contextmanager
def looking(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: str = "light",
    expected: tuple[str, ...] = (),
    script: str = "",
) -> Iterator[Page]:
    """A page that must complain of nothing but what holds an `expected` text; `script` runs in it first.

    It finds nothing that a page before it has stored, and asks for less motion: drawing what moves takes as
    much of a processor as all else.
    """
    windows = _idle.setdefault(browser, {})
    narrow = width < NARROW_PX
    page = (None if script else windows.pop(narrow, None)) or _window(browser, narrow=narrow, script=script)
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    complaints: list[str] = []

    def complain(line: ConsoleMessage) -> None:
        if line.type in COMPLAINTS:
            complaints.append(line.text)

    def fail(error: Error) -> None:
        complaints.append(f"error: {error}")

    page.on("console", complain)
    page.on("pageerror", fail)
    is_empty = False
    try:
        page.goto(url)
        yield page
        page.remove_listener("console", complain)
        page.remove_listener("pageerror", fail)
        unexpected = [one for one in complaints if not any(text in one for text in expected)]
        assert not unexpected, unexpected
        if not script:
            _empty(page)
            is_empty = True
    finally:
        if is_empty and narrow not in windows:
            windows[narrow] = page
        else:
            page.context.close()


class SharedPage:
    """A page that tests take one after the other: `looking` of all of them, and of one only after a failure.

    A test that failed may have left anything behind: a dialog, a route, another size of the window. So the
    next test gets a page in a new window, unless the page was given back.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser, self._url = browser, url
        self._looking: AbstractContextManager[Page] | None = None
        self._idle: Page | None = None

    def take(self) -> Page:
        """The page as the test before gave it back, or a new one."""
        page, self._idle = self._idle, None
        if page is None:
            self._abandon()
            self._looking = looking(self._browser, self._url)
            page = self._looking.__enter__()
        return page

    def give_back(self, page: Page) -> None:
        """Let the next test have the page, with no dialog and no notice."""
        while page.locator("dialog, .notice").count():
            page.keyboard.press("Escape")
            page.evaluate(ONE_TURN)
        self._idle = page

    def close(self) -> None:
        """End it, and fail if the page complained of something in a test that passed."""
        if self._idle is None or self._looking is None:
            self._abandon()
        else:
            self._looking.__exit__(None, None, None)

    def _abandon(self) -> None:
        """Close the window of a test that failed, whatever its page complained of."""
        if self._looking is not None:
            left = AssertionError("the test that had the page failed")
            self._looking.__exit__(AssertionError, left, None)
        self._looking = None


def _window(browser: Browser, *, narrow: bool, script: str) -> Page:
    context = browser.new_context(timezone_id="Europe/Berlin", has_touch=narrow)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    for one in filter(None, (TELL_REFUSALS, script)):
        page.add_init_script(one)
    return page


def _empty(page: Page) -> None:
    """Forget all that a test did in a window."""
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.context.clear_cookies()
    page.context.clear_permissions()
    page.goto("about:blank")


def faint_texts(page: Page) -> list[tuple[str, float]]:
    """Texts on a page that are hard to read, with their contrast."""
    return page.evaluate(FAINT_TEXTS)
