"""A switch port by SNMP version 2c: one GET of IF-MIB columns (RFC 2863). The codec is scapy's."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

PORT = 161
SYS_UPTIME = "1.3.6.1.2.1.1.3.0"
IF_ENTRY, IFX_ENTRY = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1"
COLUMNS = {
    "mtu": f"{IF_ENTRY}.4",
    "admin": f"{IF_ENTRY}.7",
    "oper": f"{IF_ENTRY}.8",
    "last_change": f"{IF_ENTRY}.9",  # hundredths of a second, by the switch's uptime
    "in_errors": f"{IF_ENTRY}.14",
    "out_discards": f"{IF_ENTRY}.19",
    "high_speed": f"{IFX_ENTRY}.15",  # Mbit/s
    "name": f"{IFX_ENTRY}.1",
}
UP, DOWN = 1, 2
TRIES = 3


def read_port(host: str, index: int, community: str, timeout_s: float) -> dict[str, Any]:
    """The port as `outside.json` has it. `host` may end in `:PORT`. Raises `OSError`, `ValueError`."""
    name, _, port = host.partition(":")
    request_id = secrets.randbelow(1 << 30) + 1
    request = encode_get(request_id, community, [SYS_UPTIME, *(f"{column}.{index}" for column in COLUMNS.values())])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((name, int(port or PORT)))
        for _ in range(TRIES):
            sock.send(request)
            values = _answer(sock, request_id, timeout_s / TRIES)
            if values is not None:
                return port_of(values, index, datetime.now(UTC))
    raise TimeoutError(f"the switch {host} does not answer SNMP (community, access list?)")


def _answer(sock: socket.socket, request_id: int, timeout_s: float) -> Mapping[str, Any] | None:
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            datagram = sock.recv(65536)
        except TimeoutError:
            return None
        values = decode_response(datagram, request_id)
        if values is not None:
            return values
    return None


def encode_get(request_id: int, community: str, oids: list[str]) -> bytes:
    from scapy.asn1.asn1 import ASN1_NULL, ASN1_OID
    from scapy.layers.snmp import SNMP, SNMPget, SNMPvarbind

    variables = [SNMPvarbind(oid=ASN1_OID(oid), value=ASN1_NULL(0)) for oid in oids]
    return bytes(SNMP(version=1, community=community, PDU=SNMPget(id=request_id, varbindlist=variables)))


def decode_response(datagram: bytes, request_id: int) -> Mapping[str, Any] | None:
    """OID -> value; None for what is no response to this request. Columns that the switch lacks are not there."""
    from scapy.layers.snmp import SNMP, SNMPresponse

    try:
        packet = SNMP(datagram)
    except Exception:
        return None
    pdu = packet.PDU
    if not isinstance(pdu, SNMPresponse) or pdu.id.val != request_id or pdu.error.val != 0:
        return None
    found = {}
    for variable in pdu.varbindlist:
        value = getattr(variable.value, "val", None)
        if isinstance(value, int | str | bytes) and value != "":
            found[str(variable.oid.val)] = value
    return found


def port_of(values: Mapping[str, Any], index: int, now: datetime) -> dict[str, Any]:
    """Columns as the fields of a `SwitchPort`. Raises `ValueError` where the switch has no such interface."""
    column = {name: values.get(f"{oid}.{index}") for name, oid in COLUMNS.items()}
    number = {name: value for name, value in column.items() if isinstance(value, int)}
    if "oper" not in number:
        raise ValueError(f"the switch has no interface {index}")
    name = column["name"]
    port: dict[str, Any] = {
        "port": name.decode(errors="replace") if isinstance(name, bytes) else str(name or index),
        "port_up": number["oper"] == UP,
        "in_errors": number.get("in_errors"),
        "out_discards": number.get("out_discards"),
        "mtu": number.get("mtu"),
    }
    if "admin" in number:
        port["admin_up"] = number["admin"] == UP
    if number.get("high_speed") and port["port_up"]:
        port["speed_mbps"] = number["high_speed"]
    uptime = values.get(SYS_UPTIME)
    if isinstance(uptime, int) and "last_change" in number and number["last_change"] <= uptime:
        port["since"] = (now - timedelta(seconds=(uptime - number["last_change"]) / 100)).isoformat()
    return port
