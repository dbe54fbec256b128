"""Notifies systemd about the state of the service, as in `sd_notify(3)`."""

import logging
import os
import socket

READY = "READY=1"

logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state to the supervisor, if `NOTIFY_SOCKET` names one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, not a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("cannot notify systemd of %s: %s", state, error)
