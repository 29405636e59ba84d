"""Answers router solicitations of known machines on every domain; the socket around `router_advert`."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable

from duckfleet.inventory.mac import mac_bytes
from duckfleet.pxe.clients import BootSite
from duckfleet.pxe.router_advert import ETH_P_IPV6, advertisement, solicitor

RETRY_S = 5.0


class RouterResponder:
    """One thread. An interface that is not there yet is tried again; boots work without, only slower."""

    def __init__(self, site: BootSite, say: Callable[[str], None]) -> None:
        self._known = {mac_bytes(client.mac) for client in site.clients}
        self._waiting = {domain.interface for domain in site.domains}
        self._say = say
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(target=self._run, name="boot-router", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            os.write(self._wake_in, b"x")
            self._thread.join()
        os.close(self._wake_out)
        os.close(self._wake_in)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            while True:
                self._open(selector)
                for key, _ in selector.select(RETRY_S if self._waiting else None):
                    if not isinstance(key.fileobj, socket.socket):
                        for other in list(selector.get_map().values()):
                            if isinstance(other.fileobj, socket.socket):
                                other.fileobj.close()
                        return
                    self._answer(selector, key.fileobj, key.data)

    def _open(self, selector: selectors.BaseSelector) -> None:
        for interface in sorted(self._waiting):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IPV6))
            try:
                raw.bind((interface, 0))
            except OSError:
                raw.close()
                continue
            raw.setblocking(False)
            selector.register(raw, selectors.EVENT_READ, interface)
            self._waiting.discard(interface)

    def _answer(self, selector: selectors.BaseSelector, raw: socket.socket, interface: str) -> None:
        try:
            asks = solicitor(raw.recv(2048))
            if asks is not None and asks.mac in self._known:
                raw.send(advertisement(asks, raw.getsockname()[4]))
        except BlockingIOError:
            return
        except OSError as error:  # the interface went away or down
            self._say(f"duckctl: {interface}: {error.strerror}")
            selector.unregister(raw)
            raw.close()
            self._waiting.add(interface)
