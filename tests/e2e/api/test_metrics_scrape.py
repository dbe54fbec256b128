"""What Prometheus gets from a running service."""

import asyncio

import aiohttp
import pytest

from tests.harness.guarded import grant, guarded
from tests.harness.receiver import Receiver
from tests.harness.scraping import Scrape
from tests.harness.served import Served
from timerwheel.api.app import make_app
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.settings import Serving, Settings
from timerwheel.store.errors import IndexDamagedError
from timerwheel.tokens import Scope


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


async def scraped(service, headers=None) -> Scrape:
    async with service.session.get(service.url / "metrics", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return Scrape(await response.text())


async def test_a_scrape_tells_the_engine_the_process_and_who_called(data):
    async with guarded(data) as service:
        await service.call("POST", "/v1/messages", json={"topic": "orders", "delay": "1h"})
        await service.call("GET", "/v1/topics/orders")
        await service.call("GET", "/v1/topics/nothing")
        await service.call("GET", "/no/such/call")
        await service.call("GET", "/no/other/call")
        scrape = await scraped(service)
        assert scrape.value("timerwheel_pending_messages", topic="orders") == 1
        assert scrape.value("timerwheel_ready") == scrape.value("timerwheel_accepting") == 1
        assert scrape.value("timerwheel_log_sync_seconds_count") > 0
        assert scrape.value("process_resident_memory_bytes") > 0
        calls = {
            (sample.labels["route"], sample.labels["status"]): sample.value
            for sample in scrape.samples
            if sample.name == "timerwheel_http_requests_total"
        }
        assert calls == {
            ("/v1/messages", "201"): 1,
            ("/v1/topics/{topic}", "200"): 1,
            ("/v1/topics/{topic}", "404"): 1,
            ("unknown", "404"): 2,
        }
        assert scrape.value("timerwheel_http_request_seconds_count", route="/v1/topics/{topic}") == 2
        assert scrape.value("timerwheel_http_requests_in_progress") == 1, "this one"


async def test_methods_that_no_call_has_make_no_series_of_their_own(data):
    async with guarded(data) as service:
        for method in ("PROPFIND", "MKCOL"):
            async with service.session.request(method, service.url / "v1/wheel"):
                pass
        scrape = await scraped(service)
        assert scrape.value("timerwheel_http_requests_total", method="unknown") == 2


async def test_a_client_that_goes_away_is_counted_as_aborted(data):
    async with guarded(data) as service:
        await service.call("POST", "/v1/messages", json={"topic": "orders"})
        waiting = asyncio.create_task(
            service.call("GET", "/v1/topics/orders/queues/0/messages?offset=1&wait_ms=60000")
        )
        async with asyncio.timeout(60):
            while (await scraped(service)).value("timerwheel_http_requests_in_progress") < 2:
                await asyncio.sleep(0)
            waiting.cancel()
            while (await scraped(service)).value("timerwheel_http_requests_in_progress") > 1:
                await asyncio.sleep(0)
        scrape = await scraped(service)
        route = "/v1/topics/{topic}/queues/{queue}/messages"
        assert scrape.value("timerwheel_http_requests_total", route=route, status="aborted") == 1


async def test_push_attempts_are_counted_by_what_came_of_them(data):
    async with (
        Receiver(behave={"bad": 500, "gone": 410}) as receiver,
        guarded(data, push_private_targets=True) as service,
    ):
        for path in ("good", "bad", "gone"):
            wanted = {"id": path, "topic": path, "url": receiver.url(path), "max_attempts": 1}
            await service.call("POST", "/v1/subscriptions", json=wanted)
            await service.call("POST", "/v1/messages", json={"topic": path})
        async with asyncio.timeout(60):
            while (scrape := await scraped(service)).total("timerwheel_push_attempts_total") < 3:
                await asyncio.sleep(0.01)
        outcomes = scrape.values("timerwheel_push_attempts_total", "outcome")
        assert outcomes == {"delivered": 1, "failed": 1, "gone": 1}
        assert scrape.value("timerwheel_push_attempt_seconds_count") == 3
        assert scrape.value("timerwheel_subscriptions") == 3


async def test_a_token_for_some_topics_sees_counts_of_all_and_names_of_its_own(data):
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, topics=("orders*",))
    async with guarded(data) as service:
        for topic in ("orders", "bills", "bills"):
            await service.call("POST", "/v1/messages", admin, json={"topic": topic, "delay": "1h"})
        for topic in ("orders", "bills"):
            await service.call("PUT", f"/v1/topics/{topic}/groups/of-{topic}", admin, json={})
        assert (await service.call("GET", "/metrics"))[0] == 401
        whole, part = await scraped(service, admin), await scraped(service, owner)
        assert whole.values("timerwheel_pending_messages", "topic") == {"orders": 1, "bills": 2}
        assert part.values("timerwheel_pending_messages", "topic") == {"orders": 1, "": 2}
        assert part.values("timerwheel_group_lag_messages", "group") == {"of-orders": 0, "": 0}
        assert not [sample for sample in part.samples if "bills" in " ".join(sample.labels.values())]
        again = await scraped(service, admin)
        assert again.values("timerwheel_group_lag_messages", "group") == {"of-orders": 0, "of-bills": 0}


async def test_names_of_rocketmq_are_there_when_they_are_asked_for(data):
    async with guarded(data, serving=Serving(rocketmq_metrics=True)) as service:
        await service.call("POST", "/v1/messages", json={"topic": "orders", "delay": "1h"})
        scrape = await scraped(service)
        assert scrape.value("rocketmq_timing_messages", topic="orders") == 1
        assert scrape.value("timerwheel_pending_messages", topic="orders") == 1


async def test_while_the_engine_opens_a_scrape_says_that_it_is_not_ready(data):
    server = Served(make_app(EngineHandle(Settings(data=data))))
    await server.start_server()
    async with aiohttp.ClientSession() as session, session.get(server.make_url("/metrics")) as response:
        scrape = Scrape(await response.text())
    await server.close()
    assert scrape.value("timerwheel_ready") == scrape.value("timerwheel_accepting") == 0
    assert "timerwheel_pending_messages" not in scrape.families
    assert scrape.value("timerwheel_build_info") == 1


async def test_a_failed_engine_is_reported_and_scraped_to_the_end(data):
    async with guarded(data) as service:
        with pytest.raises(IndexDamagedError):
            service.engine.core.index.index.report_damage("for the test")
        await service.engine.failed()
        scrape = await scraped(service)
        assert scrape.value("timerwheel_ready") == 0
        assert scrape.value("timerwheel_log_segments") == 1
        await service.engine.close()
        scrape = await scraped(service)
        assert scrape.value("timerwheel_ready") == 0
        assert "timerwheel_log_segments" not in scrape.families


async def test_many_scrapes_at_once_are_all_answered(data):
    async with guarded(data) as service:
        scrapes = await asyncio.gather(*(scraped(service) for _ in range(20)))
        assert {scrape.value("timerwheel_ready") for scrape in scrapes} == {1}
