"""TFTP as firmware really speaks it (RFC 1350, 2347-2349), packet by packet, against the running service."""

import struct
from pathlib import Path

import pytest

RRQ, WRQ, DATA, ACK, ERROR, OACK = 1, 2, 3, 4, 5, 6
SERVER = ("10.21.1.1", 69)
LOADER = "/usr/lib/ipxe/undionly.kpxe"


def request(name: bytes, *options: tuple[bytes, bytes], opcode: int = RRQ, mode: bytes = b"octet") -> bytes:
    words = [name, mode, *(word for pair in options for word in pair)]
    return struct.pack("!H", opcode) + b"".join(word + b"\0" for word in words)


def ack(block: int) -> bytes:
    return struct.pack("!HH", ACK, block & 0xFFFF)


@pytest.fixture
def udp(network, service):
    with network.udp_socket(1) as made:
        made.settimeout(5)
        yield made


def transfer(udp, name: bytes, *options: tuple[bytes, bytes]) -> bytes:
    """The whole file, acknowledged block by block."""
    block_bytes = int(dict(options).get(b"blksize", b"512"))
    udp.sendto(request(name, *options), SERVER)
    content, expected = bytearray(), 1
    while True:
        packet, peer = udp.recvfrom(65536)
        opcode, block = struct.unpack("!HH", packet[:4])
        if opcode == OACK:
            udp.sendto(ack(0), peer)
            continue
        assert opcode == DATA, packet
        if block != expected & 0xFFFF:
            continue  # a block sent again
        content += packet[4:]
        udp.sendto(ack(expected), peer)
        expected += 1
        if len(packet) < 4 + block_bytes:
            return bytes(content)


@pytest.fixture(scope="module")
def loader():
    return Path(LOADER).read_bytes()


def test_a_loader_arrives_whole(udp, loader):
    assert transfer(udp, b"undionly.kpxe") == loader
    assert transfer(udp, b"undionly.kpxe", (b"blksize", b"1456")) == loader


def test_size_first_then_never_mind_then_for_real(udp, service, loader):
    # What PXE ROMs do: ask with tsize=0 for the size, abort, ask again.
    before = max((event.id for event in service.events()), default=0)
    udp.sendto(request(b"undionly.kpxe", (b"tsize", b"0")), SERVER)
    packet, peer = udp.recvfrom(65536)
    assert packet[:2] == struct.pack("!H", OACK)
    options = packet[2:].split(b"\0")
    assert options[options.index(b"tsize") + 1] == str(len(loader)).encode()
    udp.sendto(struct.pack("!HH", ERROR, 8) + b"User aborted the transfer\0", peer)
    assert transfer(udp, b"undionly.kpxe", (b"tsize", b"0"), (b"blksize", b"1468")) == loader
    assert service.wait_for_event("", "tftp_sent", before).evidence["file"] == "undionly.kpxe"
    assert not [event for event in service.events(after_id=before) if event.kind == "tftp_failed"]


def test_more_blocks_than_a_block_number_can_say(udp, service):
    # Block numbers are 16 bits; after 65,535 comes 0. The smallest block keeps the file small.
    content = bytes(range(256)) * 2049 + b"the end"
    path = service.tftp_dir / "many-blocks"
    path.write_bytes(content)
    path.chmod(0o644)
    assert len(content) // 8 > 65_535
    assert transfer(udp, b"many-blocks", (b"blksize", b"8")) == content


def test_an_ack_that_comes_twice_brings_one_block(udp, loader):
    # The Sorcerer's Apprentice bug: every duplicate doubled the traffic to the end of the file (RFC 1123, 4.2.3.1).
    udp.sendto(request(b"undionly.kpxe"), SERVER)
    packet, peer = udp.recvfrom(65536)
    assert packet[:4] == struct.pack("!HH", DATA, 1)
    udp.sendto(ack(1), peer)
    assert udp.recv(65536)[:4] == struct.pack("!HH", DATA, 2)
    udp.sendto(ack(1), peer)
    udp.sendto(ack(2), peer)
    blocks = [struct.unpack("!HH", udp.recv(65536)[:4])]
    udp.settimeout(0.5)
    try:
        while True:
            blocks.append(struct.unpack("!HH", udp.recv(65536)[:4]))
    except TimeoutError:
        pass
    assert (DATA, 3) in blocks
    assert len([block for block in blocks if block == (DATA, 3)]) == 1
    udp.sendto(struct.pack("!HH", ERROR, 0) + b"\0", peer)


def test_a_name_with_a_byte_too_many_is_served_all_the_same(udp, loader):
    assert transfer(udp, b"undionly.kpxe\xff") == loader


def test_a_name_with_a_nul_too_many_is_refused_and_harms_nothing(udp, loader):
    # The second NUL makes the mode empty: no server can tell what was meant. Our offers cannot be spoilt like that
    # (test_dhcp_edges: the name is alone in its field, NUL to the end), so no such ROM needs to be served.
    udp.sendto(request(b"undionly.kpxe\0"), SERVER)
    packet, _ = udp.recvfrom(65536)
    assert packet[:2] == struct.pack("!H", ERROR)
    assert transfer(udp, b"undionly.kpxe") == loader


@pytest.mark.parametrize("name", [b"../../../etc/passwd", b"/etc/passwd", b"no-such-file", b"", b"\xff" * 400])
def test_nothing_else_is_served(udp, name):
    udp.sendto(request(name), SERVER)
    assert udp.recv(65536)[:2] == struct.pack("!H", ERROR)


def test_nothing_can_be_written(udp, service):
    udp.sendto(request(b"undionly.kpxe", opcode=WRQ), SERVER)
    assert udp.recv(65536)[:2] == struct.pack("!H", ERROR)
    assert not (service.tftp_dir / "new").exists()
