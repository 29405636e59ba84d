"""DHCP as firmware really asks for it, packet by packet, against the running service."""

from concurrent.futures import ThreadPoolExecutor

import pytest

BIOS, EFI, EFI_BC, EFI_HTTP = (93, b"\x00\x00"), (93, b"\x00\x07"), (93, b"\x00\x09"), (93, b"\x00\x10")
PXE_CLASS = ("vendor_class_id", b"PXEClient:Arch:00000:UNDI:002001")
HTTP_CLASS = ("vendor_class_id", b"HTTPClient:Arch:00016:UNDI:003001")
WANTS_BOOT_FILE = ("param_req_list", [1, 3, 43, 60, 66, 67])
IPXE_OPTION = (175, b"\x13\x01\x01\x15\x01\x01")  # features: HTTP, and so on
SCRIPT = "http://10.21.{}.1:7023/duck/${{netX/mac}}/boot.ipxe"


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ([BIOS, PXE_CLASS], "undionly.kpxe"),
        ([EFI, PXE_CLASS], "snponly.efi"),
        ([EFI_BC, PXE_CLASS], "snponly.efi"),
        ([EFI_HTTP, HTTP_CLASS], "http://10.21.1.1:7023/loader/snponly.efi"),
        ([PXE_CLASS], ""),  # no architecture told: nothing that could be right
    ],
    ids=["bios", "efi", "efi-bc", "efi-http", "none"],
)
def test_each_kind_of_firmware_gets_its_loader(dhcp, service, options, file):
    answer = dhcp().ask(service.mac(1, 1), [*options, WANTS_BOOT_FILE])
    assert (answer.address, answer.boot_file, answer.next_server) == ("10.21.1.101", file, "10.21.1.1")


@pytest.mark.parametrize("uuid", [None, b"\x00" + bytes(range(16))], ids=["absent", "17 bytes"])
def test_the_machines_uuid_makes_no_difference(dhcp, service, uuid):
    options = [BIOS, PXE_CLASS, *([(97, uuid)] if uuid else [])]
    assert dhcp().ask(service.mac(1, 1), options).boot_file == "undionly.kpxe"


@pytest.mark.parametrize("arch", [BIOS, EFI])
@pytest.mark.parametrize("sign", [(77, b"iPXE"), (77, b"\x04iPXE"), IPXE_OPTION], ids=["raw", "RFC 3004", "option 175"])
def test_ipxe_gets_the_script_and_not_itself_again(dhcp, service, arch, sign):
    answer = dhcp().ask(service.mac(1, 1), [arch, PXE_CLASS, sign])
    assert answer.boot_file == SCRIPT.format(1)


def test_ipxe_need_not_wait_for_another_server(dhcp, service):
    answer = dhcp().ask(service.mac(1, 1), [BIOS, PXE_CLASS, IPXE_OPTION, ("param_req_list", [67, 175])])
    assert answer.options[175].startswith(b"\xb0\x01\x01")


def test_only_an_http_offer_calls_itself_one(dhcp, service):
    client = dhcp()
    assert client.ask(service.mac(1, 1), [EFI_HTTP, HTTP_CLASS]).options["vendor_class_id"] == b"HTTPClient"
    assert "vendor_class_id" not in client.ask(service.mac(1, 1), [EFI, PXE_CLASS, WANTS_BOOT_FILE]).options


def test_the_file_name_cannot_be_spoilt(dhcp, service):
    # A ROM that copies option 67 past its end appends a 0xFF. The name is in its fixed field, and NUL to its end.
    answer = dhcp().ask(service.mac(1, 1), [BIOS, PXE_CLASS, WANTS_BOOT_FILE])
    assert answer.file == b"undionly.kpxe".ljust(128, b"\0")
    assert "boot-file-name" not in answer.options


@pytest.mark.parametrize(
    "client_id", [b"\x01\x02\xdc\x00\x00\x01\x01", b"\x00" + bytes(16), b"\xff\x00\x00\x00\x01" + bytes(14)]
)
def test_whatever_client_id_a_duck_shows_it_keeps_its_address(dhcp, service, client_id):
    answer = dhcp().ask(service.mac(1, 1), [BIOS, PXE_CLASS, (61, client_id)])
    assert answer.address == "10.21.1.101"


def test_an_unknown_machine_gets_no_answer_and_a_line_in_the_log(dhcp, service):
    stranger = "02:dc:ff:00:00:01"
    assert dhcp().ask(stranger, [BIOS, PXE_CLASS], timeout_s=1.0) is None
    event = service.wait_for_event(stranger, "dhcp_ignored")
    assert event.evidence["reason"] == "ignored"
    assert event.evidence["domain"] == "d1"


@pytest.mark.parametrize("mac", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"])
def test_a_rom_without_an_identity_gets_no_answer(dhcp, service, mac):
    assert dhcp().ask(mac, [BIOS, PXE_CLASS], timeout_s=0.7) is None


def test_no_domain_answers_for_another(dhcp, service):
    clients = {domain: dhcp(domain) for domain in (1, 2, 3, 4)}
    xid = clients[2].send(service.mac(2, 3), [BIOS, PXE_CLASS])
    answers = {domain: client.receive(xid, 5.0 if domain == 2 else 0.7) for domain, client in clients.items()}
    assert answers.pop(2).address == "10.21.2.103"
    assert set(answers.values()) == {None}


def test_a_duck_in_the_wrong_domain_gets_no_answer_anywhere(dhcp, service):
    clients = [dhcp(domain) for domain in (1, 2)]
    xid = clients[1].send(service.mac(1, 5), [BIOS, PXE_CLASS])  # a cable in the wrong switch
    assert [client.receive(xid, 0.7) for client in clients] == [None, None]
    event = service.wait_for_event(service.mac(1, 5), "dhcp_ignored")
    assert event.evidence["domain"] == "d2"


def test_a_request_for_another_address_is_refused(dhcp, service):
    client = dhcp()
    answer = client.ask(service.mac(1, 1), [BIOS, PXE_CLASS, ("requested_addr", "10.21.1.77")], kind="request")
    assert answer.options["message-type"] == 6  # NAK: the duck asks anew and gets its own


def test_rubbish_on_the_port_harms_nothing(dhcp, network, service):
    rubbish = [b"", b"\x01", b"\x01\x01\x06\x00" + bytes(300), b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n", bytes(1400)]
    with network.udp_socket(1) as udp:
        for payload in rubbish:
            udp.sendto(payload, ("10.21.1.1", 67))
            udp.sendto(payload, ("10.21.1.1", 69))
    assert dhcp().ask(service.mac(1, 1), [BIOS, PXE_CLASS]).address == "10.21.1.101"


def test_32_ducks_at_once_all_get_their_own(network, service, dhcp):
    clients = {domain: dhcp(domain) for domain in (1, 2, 3, 4)}
    offers = {}

    def boot_domain(domain: int) -> None:
        # All discoveries first, then the answers in whatever order they come.
        client = clients[domain]
        asked = {client.send(service.mac(domain, n), [BIOS, PXE_CLASS, (77, b"iPXE")]): n for n in range(1, 9)}
        for xid, answer in client.receive_all(set(asked)).items():
            number = asked[xid]
            chosen = [BIOS, PXE_CLASS, (77, b"iPXE"), ("requested_addr", answer.address)]
            accepted = client.ask(
                service.mac(domain, number), [*chosen, ("server_id", answer.next_server)], kind="request"
            )
            offers[domain, number] = (accepted.address, accepted.options["message-type"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(boot_domain, clients))
    assert offers == {(d, n): (f"10.21.{d}.{100 + n}", 5) for d in (1, 2, 3, 4) for n in range(1, 9)}

    def fetch_script(place) -> bytes:
        domain, number = place
        with network.tcp_socket(domain) as connection:
            path = f"/duck/{service.mac(domain, number)}/boot.ipxe"
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: 10.21.{domain}.1:7023\r\nConnection: close\r\n\r\n".encode()
            )
            return b"".join(iter(lambda: connection.recv(65536), b""))

    with ThreadPoolExecutor(32) as pool:
        scripts = dict(zip(offers, pool.map(fetch_script, offers), strict=True))
    for (domain, number), script in scripts.items():
        assert script.startswith(b"HTTP/1.1 200")
        assert f"duckfleet.mac={service.mac(domain, number)} ".encode() in script
        assert f"duckfleet.name=duck{domain}{100 + number} ".encode() in script
