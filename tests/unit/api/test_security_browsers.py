"""What browsers send on behalf of other pages, by their headers."""

import pytest
from aiohttp.test_utils import make_mocked_request

from timerwheel.api.security.browsers import is_cross_site, is_rebound

SHOP = "https://shop.example"


@pytest.mark.parametrize(
    ("headers", "cross"),
    [
        ({}, False),  # a program
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8686"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}, True),
        ({"Sec-Fetch-Site": "whatever"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": SHOP}, False),  # allowed by the setting
        ({"Origin": SHOP}, False),
        ({"Origin": "http://timers:8686", "Host": "timers:8686"}, False),
        ({"Origin": "http://TIMERS:8686", "Host": "timers:8686"}, False),
        ({"Origin": "http://evil.example", "Host": "timers:8686"}, True),
        ({"Origin": "http://timers:8687", "Host": "timers:8686"}, True),
        ({"Origin": "null", "Host": "timers:8686"}, True),
        ({"Origin": "", "Host": "timers:8686"}, True),
        ({"Origin": "http://[", "Host": "timers:8686"}, True),
        ({"Origin": "http://user@timers:8686", "Host": "timers:8686"}, True),
    ],
)
def test_a_page_of_another_origin_is_named_by_the_headers_that_it_cannot_choose(headers, cross):
    request = make_mocked_request("POST", "/v1/messages", headers=headers)
    assert is_cross_site(request, frozenset({SHOP})) is cross


def test_a_star_allows_every_page():
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "null"}
    request = make_mocked_request("POST", "/v1/messages", headers=headers)
    assert not is_cross_site(request, frozenset({"*"}))


@pytest.mark.parametrize(
    ("host", "rebound"),
    [
        ("", False),
        ("localhost", False),
        ("LOCALHOST:8686", False),
        ("localhost.:8686", False),
        ("timers.localhost", False),
        ("127.0.0.1:8686", False),
        ("[::1]:8686", False),
        ("192.168.1.7:80", False),  # no name, so nobody's DNS chose where it leads
        ("evil.example", True),
        ("evil.example:8686", True),
        ("127.0.0.1.evil.example", True),
        ("localhost.evil.example:8686", True),
        ("notlocalhost", True),
        ("[evil.example]", True),
        ("2130706433", True),
        ("user@127.0.0.1", True),
    ],
)
def test_a_name_that_leads_here_by_somebody_elses_dns_is_known(host, rebound):
    assert is_rebound(host) is rebound
