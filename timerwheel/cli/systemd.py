"""What systemd is told of the service that it started, as in `sd_notify(3)`."""

import logging
import os
import socket

READY = "READY=1"

logger = logging.getLogger(__name__)


def tell(state: str) -> None:
    """Tell whoever supervises the service, if anybody asked to be told (`NOTIFY_SOCKET`)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name of the kernel's, not of a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("systemd was not told %s: %s", state, error)
