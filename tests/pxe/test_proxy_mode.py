"""Beside another DHCP server: no addresses from us, only what to boot."""

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

BIOS, EFI = (93, b"\x00\x00"), (93, b"\x00\x07")
PXE_CLASS = ("vendor_class_id", b"PXEClient:Arch:00000:UNDI:002001")
EFI_CLASS = ("vendor_class_id", b"PXEClient:Arch:00007:UNDI:003000")


@pytest.fixture(scope="module")
def proxy(make_network, make_service, image, tmp_path_factory):
    network = make_network()
    return make_service(network, tmp_path_factory.mktemp("proxy"), image[0], "--mode", "proxy"), network


@pytest.fixture
def client(proxy, make_client):
    return make_client(proxy[1], 1)


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ([BIOS, PXE_CLASS], "undionly.kpxe"),
        ([BIOS, PXE_CLASS, (77, b"iPXE")], "http://10.21.1.1:7023/duck/${netX/mac}/boot.ipxe"),
    ],
    ids=["bios", "ipxe"],
)
def test_an_offer_names_the_file_and_gives_no_address(client, proxy, options, file):
    answer = client.ask(proxy[0].mac(1, 1), options)
    assert answer is not None
    assert answer.address == "0.0.0.0"
    assert answer.options["vendor_class_id"] == b"PXEClient"
    assert answer.boot_file == file


def test_who_does_not_boot_from_the_network_gets_no_answer(client, proxy):
    assert client.ask(proxy[0].mac(1, 1), [], timeout_s=0.7) is None


def test_uefi_is_told_at_the_port_for_boot_servers(client, proxy):
    # UEFI takes our offer for the sign that there is a boot server, and asks that one (PXE 2.1, 2.2.5: port 4011).
    service, network = proxy
    options = [EFI, EFI_CLASS, (97, b"\x00" + bytes(16))]
    assert client.ask(service.mac(1, 1), options).options["vendor_class_id"] == b"PXEClient"
    mac = bytes.fromhex(service.mac(1, 1).replace(":", ""))
    message = BOOTP(chaddr=mac, xid=77, ciaddr="10.21.1.240") / DHCP(
        options=[("message-type", "request"), *options, "end"]
    )
    with network.udp_socket(1) as udp:
        udp.settimeout(5)
        udp.sendto(bytes(message), ("10.21.1.1", 4011))
        answer = BOOTP(udp.recv(4096))
    assert answer.file.rstrip(b"\0") == b"snponly.efi"
