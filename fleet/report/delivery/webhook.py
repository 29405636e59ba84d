"""A report as a POST: JSON with `text` for chat rooms, and the whole report for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from duckfleet.fleet.report.archive import Rendered
from duckfleet.fleet.report.delivery.settings import Webhook
from duckfleet.fleet.report.delivery.target import DeliveryFailed, Secret

TIMEOUT_S = 20.0
_TRY_AGAIN = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    webhook: Webhook

    @property
    def name(self) -> str:
        """Host and path only: what stands in a URL's user part or query is often a secret."""
        parts = urlsplit(self.webhook.url)
        port = f":{parts.port}" if parts.port else ""
        return f"webhook {parts.hostname}{port}{parts.path}"

    @property
    def when(self) -> str:
        return self.webhook.when

    def send(self, rendered: Rendered) -> None:
        """Raises `DeliveryFailed`: answers other than 2xx, a redirection too."""
        import httpx

        page = rendered.page
        body = {"text": f"{page.fleet}: {page.verdict}", "report": json.loads(rendered.json)}
        headers = {"User-Agent": "duckfleet", "Idempotency-Key": rendered.stem}
        if self.webhook.token_file:
            headers["Authorization"] = f"Bearer {Secret(self.webhook.token_file).read()}"
        try:
            answer = httpx.post(self.webhook.url, json=body, headers=headers, timeout=TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryFailed(f"no answer: {error or type(error).__name__}") from error
        if not answer.is_success:
            is_final = answer.status_code < 500 and answer.status_code not in _TRY_AGAIN
            raise DeliveryFailed(f"answered {answer.status_code} {answer.reason_phrase}", is_final=is_final)
