"""Clients that are connected, and the leases that the service renews for them.

A push consumer names no invisible duration. It gets leases of `LEASE_MS`, which are renewed as long as the
consumer is heard of, at most `RENEWED_FOR_MS`: then it hangs, and another consumer gets the message. A
consumer that says that it leaves, or is silent for `SILENT_MS`, loses its leases: at once, or when they
end.
"""

import logging
from collections.abc import Iterable
from typing import Final

from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import RECEIVE_MAX
from timerwheel.rocketmq.grpc.call import ClientName
from timerwheel.rocketmq.grpc.codes import ClientType, Language
from timerwheel.rocketmq.pops import Place
from timerwheel.store.errors import StoreError

LEASE_MS: Final = 60_000
RENEW_EACH_MS: Final = 20_000
RENEWED_FOR_MS: Final = 3 * 3_600_000
SILENT_MS: Final = 30_000
CLIENTS_MAX: Final = 10_000
"""Most clients of one token that are known; of more, those that were silent for longest are forgotten."""

logger = logging.getLogger(__name__)


class Client:
    """What a client said of itself, and the receipts that are renewed for it, with when they came."""

    def __init__(self) -> None:
        self.type = ClientType.CLIENT_TYPE_UNSPECIFIED
        self.language = Language.LANGUAGE_UNSPECIFIED
        self.long_polling_ms: int | None = None
        self.heard_ms = 0
        self.renewed: dict[Place, dict[str, int]] = {}


class Clients:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By the token and the id; the client that was heard last is at the end.
        self._clients: dict[str, dict[str, Client]] = {}

    def heard(self, name: ClientName) -> Client:
        """Return the client, which just made a call."""
        token, client_id = name
        clients = self._clients.setdefault(token, {})
        client = clients.pop(client_id, None) or Client()
        client.heard_ms = self._engine.clock.monotonic_ms()
        clients[client_id] = client
        if len(clients) > CLIENTS_MAX:
            del clients[next(iter(clients))]
        return client

    def renew(self, client: Client, place: Place, receipts: Iterable[str]) -> None:
        """Renew these leases from now on."""
        now_ms = self._engine.clock.monotonic_ms()
        client.renewed.setdefault(place, {}).update(dict.fromkeys(receipts, now_ms))

    def settled(self, client: Client, place: Place, receipts: Iterable[str]) -> None:
        """Renew these leases no more."""
        held = client.renewed.get(place)
        if held is not None:
            for receipt in receipts:
                held.pop(receipt, None)
            if not held:
                del client.renewed[place]

    async def left(self, name: ClientName) -> None:
        """The client leaves: what it has not acknowledged is for others."""
        token, client_id = name
        client = self._clients.get(token, {}).pop(client_id, None)
        if client is None:
            return
        for place, held in client.renewed.items():
            for receipts in _parts(held):
                try:
                    await self._engine.groups.nack(*place, receipts, delay_ms=0, reason="its consumer left")
                except (TimerwheelError, StoreError) as error:  # the group is deleted, say: others are not
                    logger.info("leases of group %s of topic %s stay: %s", place.group, place.topic, error)

    async def keep_renewing(self) -> None:
        """Renew leases until cancelled."""
        while True:
            await self._engine.clock.sleep_for(RENEW_EACH_MS)
            await self.renew_all()

    async def renew_all(self) -> None:
        """Renew the leases of all clients that were heard of lately, and forget the others."""
        now_ms = self._engine.clock.monotonic_ms()
        for token, clients in list(self._clients.items()):
            for client_id, client in list(clients.items()):
                if now_ms - client.heard_ms < SILENT_MS:
                    await self._renew_of(client, now_ms)
                else:
                    del clients[client_id]
            if not clients:
                del self._clients[token]

    async def _renew_of(self, client: Client, now_ms: int) -> None:
        for place, held in list(client.renewed.items()):
            young = [one for one, since_ms in held.items() if now_ms - since_ms < RENEWED_FOR_MS]
            self.settled(client, place, held.keys() - young)
            for receipts in _parts(young):
                await self._renew(client, place, receipts)

    async def _renew(self, client: Client, place: Place, receipts: list[str]) -> None:
        try:
            results = await self._engine.groups.extend(*place, receipts, LEASE_MS)
        except (TimerwheelError, StoreError) as error:
            logger.info("leases of group %s of topic %s are not renewed: %s", place.group, place.topic, error)
            return
        self.settled(client, place, [one.receipt for one in results if not one.ok])


def _parts(receipts: Iterable[str]) -> list[list[str]]:
    every = list(receipts)
    return [every[at : at + RECEIVE_MAX] for at in range(0, len(every), RECEIVE_MAX)]
