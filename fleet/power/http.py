"""Power by an HTTP call: smart plugs and PDUs."""

from __future__ import annotations

from urllib.parse import quote

from duckfleet.fleet.errors import PowerError
from duckfleet.fleet.power.interface import Evidence
from duckfleet.fleet.power.template import fill
from duckfleet.inventory.site import Domain, Duck, PowerSource


class HttpPower:
    """Calls the source's URL; any answer but 2xx is a failure. Redirects are not followed."""

    def __init__(self, source: PowerSource) -> None:
        self.source = source

    def on(self, duck: Duck, domain: Domain) -> Evidence:
        return self._call("on", duck, domain)

    def off(self, duck: Duck, domain: Domain) -> Evidence:
        return self._call("off", duck, domain)

    def cycle(self, duck: Duck, domain: Domain) -> Evidence:
        return self._call("cycle", duck, domain)

    def _call(self, action: str, duck: Duck, domain: Domain) -> Evidence:
        import httpx

        url = fill(self.source, action, duck, domain, lambda value: quote(value, safe=""))
        where = f"duck {duck.name}: [power.{self.source.name}] {action}: {self.source.method} {url}"
        try:
            # The operator's proxies are for the world outside, not for a plug on the shelf.
            with httpx.Client(timeout=self.source.timeout_s, trust_env=False) as client:
                answer = client.request(self.source.method, url)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PowerError(f"{where}: {str(error) or type(error).__name__}") from error
        if not answer.is_success:
            raise PowerError(f"{where}: answered {answer.status_code} {answer.text.strip()[:200]}")
        return {"driver": "http", "url": url, "status": answer.status_code, "answer": answer.text.strip()[:500]}
