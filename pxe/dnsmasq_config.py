"""dnsmasq's configuration as text, from a site and settings; pure, so that it can be read, compared and tested.

Options are those of dnsmasq(8). Terms of DHCP are those of RFC 2131/2132; option 93 is RFC 4578 (values: IANA,
"Processor Architecture Types"), user class is RFC 3004, option 175 is iPXE's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import DEFAULT_HTTP_PORT, BootDomain, BootSite

MODES = ("dhcp", "proxy")
UNKNOWN_CLIENTS = ("ignore", "discover")
BIOS_LOADER = "undionly.kpxe"
EFI_LOADER = "snponly.efi"  # drives the card by the firmware's own driver, which knows cards newer than iPXE
DISCOVERY_FIRST, DISCOVERY_LAST = 201, 250  # host part of addresses for machines that are not in the site file
# iPXE puts the MAC of the card it came up on into the URL itself.
SCRIPT_PATH = "/duck/${netX/mac}/boot.ipxe"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How the boot service behaves. `mode` proxy: another server gives addresses, we only say what to boot."""

    run_dir: Path  # readable by dnsmasq's user: its configuration, leases and tftp/
    http_port: int = DEFAULT_HTTP_PORT
    mode: str = "dhcp"
    unknown: str = "ignore"

    @property
    def tftp_dir(self) -> Path:
        return self.run_dir / "tftp"


def base_url(domain: BootDomain, settings: ServiceSettings) -> str:
    return f"http://{domain.host_address}:{settings.http_port}"


def dnsmasq_config(site: BootSite, settings: ServiceSettings) -> str:
    """The whole configuration. Raises `OperatorError` for settings that name no known behaviour."""
    if settings.mode not in MODES or settings.unknown not in UNKNOWN_CLIENTS:
        raise OperatorError(f"mode is one of {', '.join(MODES)}; unknown machines: {', '.join(UNKNOWN_CLIENTS)}")
    parts = [_general(site, settings), _CLASSES]
    for number, domain in enumerate(site.domains, start=1):
        tag = f"domain-{number}"  # a name may hold what is no tag
        parts.append((_proxy_domain if settings.mode == "proxy" else _dhcp_domain)(domain, tag, settings))
    if settings.mode == "dhcp":
        parts.append(_reservations(site))
        if settings.unknown == "ignore":
            parts.append("# Machines that are not in the site file get no answer.\ndhcp-ignore=tag:!known\n")
    return "\n".join(parts)


def _shown(name: str) -> str:
    """A name in a comment, which must stay on its line."""
    return re.sub(r"[^ -~]", "?", name)


def _general(site: BootSite, settings: ServiceSettings) -> str:
    interfaces = [domain.interface for domain in site.domains]
    for name in interfaces:
        if not re.fullmatch(r"[A-Za-z0-9._@-]{1,15}", name):
            raise OperatorError(f"interface {name!r}: dnsmasq cannot be told to serve an interface of this name")
    lines = [
        "# Written by duckctl for this run; changes are lost.",
        "port=0",  # no DNS
        "bind-dynamic",  # an interface may come up later
        *(f"interface={name}" for name in interfaces),
        "except-interface=lo",
        "no-ping",
        "log-dhcp",
        f"pid-file={settings.run_dir}/dnsmasq.pid",
        f"dhcp-leasefile={settings.run_dir}/leases",
        f"enable-tftp={','.join(interfaces)}",
        f"tftp-root={settings.tftp_dir}",
        # The boot file's name stays in its fixed field, padded with NUL: ROMs that copy option 67 past its end
        # ask for names with a trailing 0xFF.
        "dhcp-no-override",
    ]
    if settings.mode == "dhcp":
        lines += [
            "dhcp-authoritative",
            # iPXE's no-pxedhcp: it need not wait for another server's offer of a boot file.
            "dhcp-option=tag:ipxe,encap:175,176,1b",
        ]
    return "\n".join(lines) + "\n"


_CLASSES = """\
# What is asking: iPXE (by its own option, or by user class in either form), or firmware by architecture.
dhcp-match=set:ipxe,175
dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:bios,option:client-arch,0
dhcp-match=set:efi,option:client-arch,7
dhcp-match=set:efi,option:client-arch,9
dhcp-match=set:efihttp,option:client-arch,16
# Firmware that boots by HTTP takes only an offer that calls itself so.
dhcp-option-force=tag:efihttp,tag:!ipxe,option:vendor-class,HTTPClient
"""


def _dhcp_domain(domain: BootDomain, tag: str, settings: ServiceSettings) -> str:
    network = domain.network
    if settings.unknown == "discover":
        first, last = (network.network_address + host for host in (DISCOVERY_FIRST, DISCOVERY_LAST))
        addresses = f"{first},{last}"
        if last not in network:
            raise OperatorError(f"domain {domain.name}: {network} has no room for discovery addresses {first}-{last}")
    else:
        addresses = f"{network.network_address},static"
    tags = f"tag:{domain.interface},set:{tag}"
    return "\n".join(
        [
            f"# Domain {_shown(domain.name)}: only for requests that came in by its own interface.",
            f"dhcp-range={tags},{addresses},{network.netmask},{domain.broadcast},12h",
            f"dhcp-option=tag:{tag},option:router",  # none: nothing of a duck leaves its domain
            *_boot_lines(domain, tag, settings),
            "",
        ]
    )


def _boot_lines(domain: BootDomain, tag: str, settings: ServiceSettings) -> list[str]:
    url = base_url(domain, settings)
    return [
        f"dhcp-boot=tag:{tag},tag:ipxe,{url}{SCRIPT_PATH}",
        f"dhcp-boot=tag:{tag},tag:!ipxe,tag:bios,{BIOS_LOADER}",
        f"dhcp-boot=tag:{tag},tag:!ipxe,tag:efi,{EFI_LOADER}",
        f"dhcp-boot=tag:{tag},tag:!ipxe,tag:efihttp,{url}/loader/{EFI_LOADER}",
    ]


def _proxy_domain(domain: BootDomain, tag: str, settings: ServiceSettings) -> str:
    network = domain.network
    return "\n".join(
        [
            f"# Domain {_shown(domain.name)}: another server gives addresses there.",
            f"dhcp-range=tag:{domain.interface},set:{tag},{network.network_address},proxy,{network.netmask}",
            f'pxe-service=tag:{tag},tag:!ipxe,x86PC,"duckfleet",{BIOS_LOADER}',
            f'pxe-service=tag:{tag},tag:!ipxe,x86-64_EFI,"duckfleet",{EFI_LOADER}',
            f'pxe-service=tag:{tag},tag:!ipxe,BC_EFI,"duckfleet",{EFI_LOADER}',
            *_boot_lines(domain, tag, settings),
            "",
        ]
    )


def _reservations(site: BootSite) -> str:
    # id:* because ROM, iPXE and system of one box each send a client-id of their own.
    lines = [f"dhcp-host={c.mac},id:*,{c.address},{c.label},12h" for c in site.clients]
    return "\n".join(["# Ducks, by MAC.", *lines, ""])
