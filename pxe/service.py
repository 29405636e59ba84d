"""The boot service: DHCP and TFTP by a supervised dnsmasq, HTTP by ourselves, one feed of events in causal order."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.boot_files import BootFiles
from duckfleet.pxe.clients import BootSite
from duckfleet.pxe.dnsmasq_config import BIOS_LOADER, EFI_LOADER, ServiceSettings, dnsmasq_config
from duckfleet.pxe.dnsmasq_log import DnsmasqLog
from duckfleet.pxe.dnsmasq_process import DnsmasqProcess
from duckfleet.pxe.events import BootEvent, Listener
from duckfleet.pxe.http_server import BootHttpServer
from duckfleet.pxe.policy import PolicyFile
from duckfleet.pxe.responder import Responder
from duckfleet.pxe.router_responder import RouterResponder


class BootService:
    """Runs until `stop`. `listener` gets every event, one at a time and in order; `on_line` dnsmasq's log."""

    def __init__(
        self,
        site: BootSite,
        settings: ServiceSettings,
        policy: PolicyFile,
        files: BootFiles,
        listener: Listener,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not site.domains:
            raise OperatorError("the site file has no domains: there is nowhere to serve")
        self._settings = settings
        self._files = files
        self._config_text = dnsmasq_config(site, settings)
        self._log = DnsmasqLog(site)
        self._listener = listener
        self._on_line = on_line
        # Events wait here for a listener that may take its time (a store that syncs): nobody's boot waits with them.
        self._events: queue.SimpleQueue[BootEvent | None] = queue.SimpleQueue()
        self._teller = threading.Thread(target=self._tell, name="boot-events", daemon=True)
        self.dnsmasq = DnsmasqProcess(settings.run_dir / "dnsmasq.conf", settings.run_dir / "dnsmasq.pid", self._line)
        self._router = RouterResponder(site, on_line)
        self._http = BootHttpServer(Responder(site, policy, files), settings.http_port, self._http_event)

    def start(self) -> None:
        """Raises `OperatorError` for what keeps the service from running: a port, a program, a file."""
        try:
            prepare_run_dir(self._settings, self._files, self._config_text)
            self._teller.start()
            self.dnsmasq.start()
            self._router.start()
            self._http.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.dnsmasq.stop()
        self._router.stop()
        self._http.stop()
        if self._teller.is_alive():
            self._events.put(None)
            self._teller.join()
        shutil.rmtree(self._settings.run_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _line(self, line: str) -> None:
        self._on_line(line)
        for event in self._log.read(line, time.time()):
            self._events.put(event)

    def _http_event(self, event: BootEvent) -> None:
        self.dnsmasq.drain()  # the lease that let the client ask us comes first
        self._events.put(event)

    def _tell(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._listener(event)
            except OperatorError as error:  # a store that is full or gone must not stop the ducks
                self._on_line(f"duckctl: an event was lost: {error}")


def prepare_run_dir(settings: ServiceSettings, files: BootFiles, config_text: str) -> None:
    """What dnsmasq reads: its configuration and the loaders. It drops its privileges, so others may read this."""
    settings.tftp_dir.mkdir(parents=True, exist_ok=True)
    for folder in (settings.run_dir, settings.tftp_dir):
        folder.chmod(0o755)
    for name in (BIOS_LOADER, EFI_LOADER):
        source = files.loader(name)
        if source is None or not source.is_file():
            raise OperatorError(f"the boot loader {source} is not here: install Debian's package ipxe")
        place_loader(settings.tftp_dir, name, source.read_bytes())
    config = settings.run_dir / "dnsmasq.conf"
    config.write_text(config_text)


def place_loader(tftp_dir: Path, name: str, data: bytes) -> None:
    """A loader under its name and under the names that ROMs make of it: some send the byte after it along."""
    for variant in (name.encode(), name.encode() + b"\xff"):
        path = Path(tftp_dir, variant.decode("utf-8", errors="surrogateescape"))
        path.write_bytes(data)
        path.chmod(0o644)
