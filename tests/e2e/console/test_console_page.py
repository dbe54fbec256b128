"""The console's page and files over HTTP: what they are served with, and that nothing else is."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from multidict import CIMultiDictProxy
from yarl import URL

from timerwheel import tokens
from timerwheel.history.history import Standing, What

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "api/console/static"
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Got(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


@pytest.fixture
async def get(service):
    """GET of a path as it is written."""
    async with aiohttp.ClientSession() as session:

        async def get(path, method="GET", **headers):
            url = URL(str(service.url).rstrip("/") + path, encoded=True)
            async with session.request(method, url, headers=headers, allow_redirects=False) as answer:
                return Got(answer.status, answer.headers, await answer.read())

        yield get


async def test_the_page_and_each_file_are_served_as_they_lie_in_the_package(get):
    for path, name in [("/", "index.html"), *((f"/console/{name}", name) for name in FILES)]:
        found = await get(path)
        assert found.status == 200, path
        assert found.headers["Content-Type"] == KINDS[Path(name).suffix]
        assert found.body == (STATIC / name).read_bytes()


async def test_the_policy_allows_files_of_the_service_alone_and_nothing_inline(get):
    for path in ("/", "/console/app.js", "/console/icon.svg"):
        headers = (await get(path)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_a_file_that_has_not_changed_is_not_sent_again(get):
    first = await get("/console/app.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = await get("/console/app.js", **{"If-None-Match": f'W/"x", {first.headers["ETag"]}'})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["Content-Security-Policy"] == first.headers["Content-Security-Policy"]
    assert (await get("/console/app.js", **{"If-None-Match": '"other"'})).status == 200
    head = await get("/", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["ETag"] == (await get("/")).headers["ETag"]


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/nothing.js",
        "/console/vendor",
        "/console/vendor/uplot/",
        "/console/../page.py",
        "/console/%2e%2e/page.py",
        "/console/..%2fpage.py",
        "/console//app.js",
        "/console/app.js%00",
        "/console/APP.JS",
        "/console/%2Fetc%2Fpasswd",
    ],
)
async def test_no_other_name_is_a_file(get, path):
    found = await get(path)
    assert found.status == 404
    assert b"unknown_route" in found.body


async def test_page_and_files_are_open_though_tokens_are_in_force_and_data_is_not(get, service):
    token = tokens.Token(name="t", starts="tw_", sha256="0" * 64, scopes=(tokens.Scope.ADMIN,), made_ms=0)
    tokens.create(service.engine.settings.data, token)
    while (await get("/v1/topics")).status != 401:
        await service.engine.clock.sleep_for(20)
    assert (await get("/v1/live")).status == 401
    assert (await get("/")).status == 200
    assert (await get("/console/app.js")).status == 200


def test_every_file_that_the_page_names_is_there():
    page = (STATIC / "index.html").read_text()
    named = {name.removeprefix("/console/") for name in re.findall(r'(?:src|href)="(/console/[^"]+)"', page)}
    for name in FILES:
        if name.endswith(".js"):
            base = (STATIC / name).parent
            for other in re.findall(r'from "(\.\.?/[^"]+)"', (STATIC / name).read_text()):
                named.add(str((base / other).resolve().relative_to(STATIC)))
    assert named <= set(FILES)
    assert set(FILES) - named == {"index.html"}, "files that nothing uses"


def test_nothing_of_the_page_is_inline_or_from_elsewhere():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    assert not re.search(r'(?:src|href)="(?!/|#)', page)
    for name in FILES:
        if not name.startswith("vendor/"):
            text = (STATIC / name).read_text()
            for named in ("http://www.w3.org/2000/svg", "https://example.com/orders"):
                text = text.replace(named, "")
            assert "://" not in text, name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), name


@pytest.mark.parametrize(("kinds", "names"), [("EVENTS", What), ("STANDINGS", Standing)])
def test_each_event_and_standing_of_a_message_has_one_colour(kinds, names):
    text = (STATIC / "history.js").read_text()
    table = re.search(rf"const {kinds} = \{{(.*?)\}};", text, re.DOTALL)[1]
    assert sorted(re.findall(r'"(\w+)"', table)) == sorted(names)


def test_the_charts_are_the_release_that_the_document_names_unchanged_and_with_its_licence():
    document = (ROOT / "doc/console.md").read_text()
    stated = dict(re.findall(r"^\| `(uPlot[\w.]+)` \| `([0-9a-f]{64})` \|$", document, re.MULTILINE))
    folder = STATIC / "vendor/uplot"
    assert stated == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("uPlot*")
    }
    version = re.search(r"leeoniya/uPlot\) (\d+\.\d+\.\d+)", document)[1]
    assert f"(v{version})" in (folder / "uPlot.esm.js").read_text()
    assert "The MIT License" in (folder / "LICENSE.txt").read_text()
