"""Virtual ducks through their own firmware: switched on by magic packet, booted by our service, given a model, asked.

The tests share one lab and stand in order: booting takes half a minute, so what can be seen of one boot is seen there.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time

import httpx
import pytest

from duckfleet.fleet.lab.ownership import processes_of_lab
from duckfleet.fleet.vm import network

BIOS_DUCK, UEFI_DUCK, DEAF_DUCK, FORGETFUL_DUCK = "duck1101", "duck1102", "duck1103", "duck1104"
RUNNING = ("up", "healthy", "degraded")


def steps(events) -> list[str]:
    """The log of one duck in short: kind, and the stage or file that it is about."""
    found = []
    for event in events:
        kind = event.evidence.get("because", event.kind)
        about = event.evidence.get("stage") or event.evidence.get("file") or ""
        found.append(f"{kind} {about}".strip())
    return found


def in_order(expected: list[str], found: list[str]) -> bool:
    """Whether all of `expected` occur in `found`, each after the one before."""
    rest = iter(found)
    return all(step in rest for step in expected)


@pytest.fixture(scope="module")
def booted(virtual_lab):
    """The BIOS and the UEFI duck, up. The UEFI duck comes up with a dead battery and a module that is not seated.

    The tests of diagnosis, which come before, leave them so.
    """
    for fault in ("default_rtc", "missing_dimm"):
        virtual_lab.duckctl("lab", "fault", UEFI_DUCK, fault)
    virtual_lab.duckctl("boot", BIOS_DUCK, UEFI_DUCK, "--wait", "--timeout", "150")
    return virtual_lab


def last_start(lab, duck: str):
    """The log of one duck since it was last woken."""
    events = lab.events(duck)
    begin = max(index for index, event in enumerate(events) if event.kind == "wake_sent" and event.to_state == "waking")
    while begin and events[begin - 1].kind == "wake_sent":  # rounds of packets are one start
        begin -= 1
    return events[begin:]


pytestmark = pytest.mark.timeout(900)  # a machine that is busy with other things starts ducks slowly
FILES = ["script_sent", "file_sent vmlinuz", "file_sent base.img", "file_sent duckd.img", "file_sent site.img"]
SYSTEM = ["dhcp_request system", "dhcp_lease system", "answered"]


def test_a_bios_duck_boots_in_the_right_order(booted):
    assert booted.state_of(BIOS_DUCK) in RUNNING
    found = steps(last_start(booted, BIOS_DUCK))
    expected = ["wake_sent", "dhcp_request ipxe", "dhcp_lease ipxe", *FILES, *SYSTEM]
    assert in_order(expected, found), found


def test_a_uefi_duck_boots_in_the_right_order(booted):
    assert booted.state_of(UEFI_DUCK) in RUNNING
    found = steps(last_start(booted, UEFI_DUCK))
    # The firmware's own PXE fetches iPXE, which then asks anew, and is not given itself again.
    firmware = ["dhcp_request firmware", "dhcp_lease firmware", "tftp_sent snponly.efi"]
    expected = ["wake_sent", *firmware, "dhcp_request ipxe", "dhcp_lease ipxe", *FILES, *SYSTEM]
    assert in_order(expected, found), found
    after_ipxe = found[found.index("dhcp_request ipxe") :]
    assert "tftp_sent snponly.efi" not in after_ipxe


def report(lab, duck: str, stage: str):
    """The image's own report; it may come a moment after the duck answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for event in last_start(lab, duck):
            if event.kind == "reported" and event.evidence["stage"] == stage:
                return event.evidence
        time.sleep(0.3)
    raise AssertionError(f"no report {stage!r} of {duck}\n{lab.consoles()}")


def test_the_clock_is_read_before_anything_sets_it(booted):
    healthy, dead = report(booted, BIOS_DUCK, "up"), report(booted, UEFI_DUCK, "up")
    assert abs(int(healthy["rtc_since_epoch"]) - time.time()) < 3600
    assert dead["rtc_date"] == "2000-01-01"
    # ... though the system has the host's time.
    assert "ready" in report(booted, UEFI_DUCK, "ready")["stage"]


def test_a_module_that_is_not_seated_is_seen_from_the_system(booted):
    healthy, half = report(booted, BIOS_DUCK, "up"), report(booted, UEFI_DUCK, "up")
    assert 0.4 < int(half["memory_kib"]) / int(healthy["memory_kib"]) < 0.6


def ssh(lab, duck: str, command: str) -> str:
    done = subprocess.run(
        [
            *network.inside(lab.namespace, ["ssh"]),
            *("-i", str(lab.state / "keys" / "ssh_ed25519"), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
            *(
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                f"root@{lab.duck(duck).address}",
                command,
            ),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ssh_takes_the_fleets_key_and_the_firmwares_tables_say_what_the_lab_did(booted):
    full = ssh(booted, BIOS_DUCK, "dmidecode -t 17")
    half = ssh(booted, UEFI_DUCK, "dmidecode -t 17; cat /run/duckfleet/ssh_host_key.pub; date +%Y")
    assert (full.count("Size: 512 MB"), full.count("No Module Installed")) == (2, 0)
    assert (half.count("Size: 512 MB"), half.count("No Module Installed")) == (1, 1)
    assert report(booted, UEFI_DUCK, "up")["ssh_host_key"] in half  # so it can be pinned
    assert half.strip().endswith(time.strftime("%Y"))


def test_ssh_takes_no_password_and_no_other_key(booted, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    options = [
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "NumberOfPasswordPrompts=0",
    ]
    command = ["ssh", "-i", str(tmp_path / "key"), "-o", "IdentitiesOnly=yes", *options]
    address = booted.duck(BIOS_DUCK).address
    done = subprocess.run(
        network.inside(booted.namespace, [*command, f"root@{address}", "true"]),
        capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Permission denied (publickey)" in done.stderr


# -- the model ----------------------------------------------------------------------------------------------

MAKE_MODEL = """
import sys, torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder = Path(sys.argv[1])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {token: i for i, token in enumerate(["<end>", *alphabet])}
tokenizer = Tokenizer(models.BPE(vocab, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
fast.save_pretrained(folder)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=len(vocab), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=0)
LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_tiny_model_is_placed_and_streams_tokens(booted, tmp_path):
    subprocess.run([sys.executable, "-c", MAKE_MODEL, str(tmp_path / "tiny")], check=True, capture_output=True)
    both = [BIOS_DUCK, UEFI_DUCK]
    booted.duckctl("model", "pull", str(tmp_path / "tiny"), "--name", "tiny")
    booted.duckctl("probe", *both, "--timeout", "240", code=None)  # the UEFI duck lacks memory, and is found to
    placed = json.loads(booted.duckctl("place", "tiny", "--tp", "2", "--allow-degraded", "--json"))
    assert placed
    port = free_port()
    options = ["--port", str(port), "--ctx", "128", "--threads", "1", "--allow-degraded", "--min-tp", "2"]
    command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(booted.state), "serve", "tiny", *options]
    log = (tmp_path / "serve.log").open("w+")
    server = subprocess.Popen(
        [*command, "--deadline", "60"], cwd=booted.site_dir, stdout=log, stderr=log, stdin=subprocess.DEVNULL
    )

    def ask() -> list[dict]:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=10).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "serve.log").read_text()
            time.sleep(0.3)
        question = {
            "model": "tiny",
            "stream": True,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "hello"}],
        }
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=question, timeout=120) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    try:
        chunks = ask()  # from where its users are, not from the lab's network
    finally:
        server.terminate()
        server.wait(60)
        log.close()
    assert [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]


# -- faults -------------------------------------------------------------------------------------------------


def test_dead_cmos_and_no_wol_are_lost_in_bounded_time_with_their_evidence(virtual_lab):
    lab = virtual_lab
    if lab.ports()[DEAF_DUCK].powered:
        lab.duckctl("off", DEAF_DUCK)  # its ssh server has another host key than before it was started anew
    lab.duckctl("lab", "fault", FORGETFUL_DUCK, "dead_cmos")
    lab.duckctl("lab", "fault", DEAF_DUCK, "no_wol")
    lab.duckctl("boot", FORGETFUL_DUCK, DEAF_DUCK, "--wait", "--timeout", "15", code=3)
    ports = lab.ports()
    for name in (FORGETFUL_DUCK, DEAF_DUCK):
        assert lab.state_of(name) == "lost"
        events = last_start(lab, name)
        timed_out = events[-1]
        assert (timed_out.kind, timed_out.from_state) == ("timed_out", "waking")
        assert timed_out.evidence["limit_s"] == 15
        assert not [event for event in events if event.evidence.get("because", event.kind).startswith("dhcp")]
    # From the store alone the two are alike; the strip and the switch tell them apart.
    forgetful, deaf = ports[FORGETFUL_DUCK], ports[DEAF_DUCK]
    assert (forgetful.powered, forgetful.link_mbps) == (True, 2500)
    assert (deaf.powered, deaf.link_mbps) == (False, 0)
    assert deaf.num_magic_packets > 0
    # It woke and never asked: the battery, or the boot order that went with it, and nothing else.
    assert lab.findings(FORGETFUL_DUCK)["silent_after_wake"][:2] == ["dead_cmos_battery", "boot_order"]
    # Fed, off, and deaf.
    assert lab.findings(DEAF_DUCK)["silent_after_wake"][0] == "wol_disabled"


def test_what_the_power_strip_can_do(virtual_lab):
    lab = virtual_lab
    assert lab.ports()[FORGETFUL_DUCK].powered
    lab.duckctl("lab", "power", FORGETFUL_DUCK, "off")
    assert not lab.ports()[FORGETFUL_DUCK].powered
    assert json.loads(lab.duckctl("lab", "power", FORGETFUL_DUCK, "--json"))["link_mbps"] == 0


def test_a_fault_that_is_none_is_refused(virtual_lab):
    virtual_lab.duckctl("lab", "fault", BIOS_DUCK, "gremlins", code=2)


def echoes_of(num_requests: int, address: str) -> int:
    """How many of so many ICMP echo requests (RFC 792) come back."""
    answered = set()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(0.2)
        for number in range(num_requests):
            plain = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, number)
            words = sum(struct.unpack("!4H", plain))
            checksum = ~(words + (words >> 16)) & 0xFFFF
            icmp.sendto(plain[:2] + struct.pack("!H", checksum) + plain[4:], (address, 0))
            if number % 10 == 9 or number == num_requests - 1:
                deadline = time.monotonic() + (0.2 if number < num_requests - 1 else 3.0)
                while time.monotonic() < deadline:
                    try:
                        kind, _, _, identifier, sequence = struct.unpack("!BBHHH", icmp.recv(2048)[20:28])
                    except TimeoutError:
                        break
                    if (kind, identifier) == (0, os.getpid() & 0xFFFF):
                        answered.add(sequence)
    return len(answered)


def test_lossy_and_slow_cables_are_what_they_say(booted):
    address = booted.duck(BIOS_DUCK).address

    def lost_of_200() -> int:
        return 200 - booted.inside(lambda: echoes_of(200, address))

    assert lost_of_200() == 0
    booted.duckctl("lab", "fault", BIOS_DUCK, "lossy_link")
    # 5 % each way of 200: 19.5 expected; from 3 to 45 all but one time in ten million (binomial).
    assert 3 <= lost_of_200() <= 45
    booted.duckctl("lab", "fault", BIOS_DUCK, "lossy_link", "--off")
    booted.duckctl("lab", "fault", BIOS_DUCK, "slow_link")
    shape = subprocess.run(
        network.inside(booted.namespace, ["tc", "qdisc", "show", "dev", "d1-101"]), capture_output=True, text=True
    ).stdout
    assert "tbf" in shape and "rate 100Mbit" in shape
    booted.duckctl("lab", "fault", BIOS_DUCK, "slow_link", "--off")
    rules = subprocess.run(
        network.inside(booted.namespace, ["nft", "list", "ruleset"]), capture_output=True, text=True
    ).stdout
    assert "d1-101" not in rules


# -- the end ------------------------------------------------------------------------------------------------


def test_nothing_is_left_after_a_crash(booted):
    lab = booted
    (relay,) = [
        p
        for p in processes_of_lab(lab.folder)
        if json.loads((lab.folder / "relay.pid.json").read_text())["pid"] == p.pid
    ]
    relay.end(grace_s=0)  # kill -9 of the relay: the machines die with it
    lab.duckctl("lab", "down")
    assert processes_of_lab(lab.folder) == []
    assert not network.exists(lab.namespace)
    assert not lab.folder.exists()
    lab.duckctl("lab", "down")  # again: nothing to do, no error
