"""dnsmasq's log as boot events: lines in, events out; no clock, no file.

The log is the feed because it is in order: dnsmasq writes a line before the answer leaves. (Its dhcp-script runs in
a process of its own, after that, and tells of leases only; a duck that is ignored never gets one.)
Formats: dnsmasq 2.8x to 2.9x, with log-dhcp.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from duckfleet.inventory.mac import BadMac, parse_mac
from duckfleet.pxe.clients import BootSite
from duckfleet.pxe.events import BootEvent

_DHCP = re.compile(r"dnsmasq-dhcp\[\d+\]: (?:(?P<xid>\d+) )?(?P<text>.*)")
_TFTP = re.compile(r"dnsmasq-tftp\[\d+\]: (?P<text>.*)")
_MESSAGE = re.compile(
    r"(?P<type>DHCP[A-Z]+)\((?P<interface>[^)]+)\) (?:(?P<address>\d+(?:\.\d+){3}) )?"
    r"(?P<mac>[0-9a-f]{2}(?::[0-9a-f]{2}){5})(?: (?P<rest>.*))?"
)
_SENT = re.compile(r"sent (?P<path>.+) to (?P<address>\d+(?:\.\d+){3})$")
_FAILED = re.compile(r"(?P<why>.*?)(?: received from| for) (?P<address>\d+(?:\.\d+){3})$")
_UNSENT = re.compile(r"failed sending (?P<path>.+) to (?P<address>\d+(?:\.\d+){3})$")
_REMEMBERED = 64  # transactions; 32 ducks at once, twice over


@dataclass
class _Transaction:
    vendor_class: str = ""
    user_class: str = ""
    pending: re.Match[str] | None = None


@dataclass
class DnsmasqLog:
    """Reads the log of one dnsmasq that serves `site`."""

    site: BootSite
    _transactions: dict[str, _Transaction] = field(default_factory=dict)

    def read(self, line: str, now_s: float) -> list[BootEvent]:
        """The events that this line completes."""
        if found := _DHCP.search(line):
            return self._dhcp(found["xid"] or "", found["text"].strip(), now_s)
        if transfer := _TFTP.search(line):
            return self._tftp(transfer["text"].strip(), now_s)
        return []

    def _dhcp(self, xid: str, text: str, now_s: float) -> list[BootEvent]:
        transaction = self._transaction(xid)
        key, separator, value = text.partition(": ")
        if key == "available DHCP subnet":  # the first line about a packet
            transaction.vendor_class = transaction.user_class = ""
        elif key == "vendor class" and separator:
            transaction.vendor_class = value
        elif key == "user class" and separator:
            transaction.user_class = value
        elif key == "tags" and transaction.pending:
            asked, transaction.pending = transaction.pending, None
            return [self._request(asked, transaction, value.split(", "), now_s)]
        elif message := _MESSAGE.fullmatch(text):
            return self._message(message, transaction, now_s)
        return []

    def _transaction(self, xid: str) -> _Transaction:
        transaction = self._transactions.pop(xid, None) or _Transaction()
        self._transactions[xid] = transaction
        while len(self._transactions) > _REMEMBERED:
            self._transactions.pop(next(iter(self._transactions)))
        return transaction

    def _message(self, message: re.Match[str], transaction: _Transaction, now_s: float) -> list[BootEvent]:
        rest = (message["rest"] or "").strip()
        if message["type"] == "DHCPDISCOVER":
            if not rest:
                transaction.pending = message
                return []
            evidence = {"reason": rest, "stage": _stage(transaction, [])}
            return [self._event("dhcp_ignored", message, evidence, now_s)]
        if message["type"] == "DHCPREQUEST" and rest:  # "ignored", "wrong network", ...
            return [self._event("dhcp_ignored", message, {"reason": rest}, now_s)]
        if message["type"] == "DHCPACK":
            evidence = {"address": message["address"] or "", "stage": _stage(transaction, [])}
            return [self._event("dhcp_lease", message, evidence, now_s)]
        return []

    def _request(self, message: re.Match[str], transaction: _Transaction, tags: list[str], now_s: float) -> BootEvent:
        evidence = {"stage": _stage(transaction, tags), "vendor_class": transaction.vendor_class}
        firmware = next((tag for tag in tags if tag in ("bios", "efi", "efihttp")), "")
        if firmware:
            evidence["firmware"] = firmware
        return self._event("dhcp_request", message, evidence, now_s)

    def _event(self, kind: str, message: re.Match[str], evidence: dict[str, str], now_s: float) -> BootEvent:
        try:
            mac = parse_mac(message["mac"])
        except BadMac:  # a broken ROM: it has no identity, but it was there
            mac = ""
            evidence["claimed_mac"] = message["mac"]
        client = self.site.by_mac(mac)
        domain = self.site.domain_of_interface(message["interface"])
        return BootEvent(now_s, kind, mac, client.name if client else "", domain.name if domain else "", evidence)

    def _tftp(self, text: str, now_s: float) -> list[BootEvent]:
        if sent := _SENT.fullmatch(text):
            return [self._transfer("tftp_sent", sent["address"], {"file": posixpath.basename(sent["path"])}, now_s)]
        if unsent := _UNSENT.fullmatch(text):
            reason = f"gave up sending {posixpath.basename(unsent['path'])}"
            return [self._transfer("tftp_failed", unsent["address"], {"reason": reason}, now_s)]
        failed = _FAILED.fullmatch(text)
        if failed is None or "aborted" in failed["why"]:  # firmware asks for the size, aborts, and asks again
            return []
        return [self._transfer("tftp_failed", failed["address"], {"reason": failed["why"]}, now_s)]

    def _transfer(self, kind: str, address: str, evidence: dict[str, str], now_s: float) -> BootEvent:
        client = self.site.by_address(address)
        if client is None:
            return BootEvent(now_s, kind, "", "", "", {**evidence, "address": address})
        return BootEvent(now_s, kind, client.mac, client.name, client.domain, evidence)


def _stage(transaction: _Transaction, tags: list[str]) -> str:
    """What was asking: the box's own firmware, iPXE, or the system that it loaded."""
    if "ipxe" in tags or "iPXE" in transaction.user_class:
        return "ipxe"
    return "firmware" if transaction.vendor_class.startswith(("PXEClient", "HTTPClient")) else "system"
