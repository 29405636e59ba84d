"""Power by a command line of the operator's (IPMI tools, PDU clients). It runs on the host, about a duck."""

from __future__ import annotations

import shlex
import subprocess

from duckfleet.fleet.errors import PowerError
from duckfleet.fleet.power.interface import Evidence
from duckfleet.fleet.power.template import fill
from duckfleet.inventory.site import Domain, Duck, PowerSource


class CommandPower:
    """Runs the source's template without a shell: values of a duck are single words, whatever they hold."""

    def __init__(self, source: PowerSource) -> None:
        self.source = source

    def on(self, duck: Duck, domain: Domain) -> Evidence:
        return self._run("on", duck, domain)

    def off(self, duck: Duck, domain: Domain) -> Evidence:
        return self._run("off", duck, domain)

    def cycle(self, duck: Duck, domain: Domain) -> Evidence:
        return self._run("cycle", duck, domain)

    def _run(self, action: str, duck: Duck, domain: Domain) -> Evidence:
        line = fill(self.source, action, duck, domain, shlex.quote)
        where = f"duck {duck.name}: [power.{self.source.name}] {action}: `{line}`"
        try:
            done = subprocess.run(
                shlex.split(line),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.source.timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise PowerError(f"{where} did not end in {self.source.timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            raise PowerError(f"{where} cannot be run: {error}") from error
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise PowerError(f"{where} ended with {done.returncode}: {last}")
        return {"driver": "command", "command": line, "output": done.stdout.strip()[-500:]}
