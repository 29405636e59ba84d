"""How large a lab may be, how its ducks are spread over domains, and what MACs they have. Pure."""

from __future__ import annotations

from duckfleet.inventory.errors import OperatorError

MAX_DOMAINS = 4
DUCKS_PER_DOMAIN = 8


def count_domains(num_ducks: int, num_domains: int | None) -> int:
    """In how many domains so many ducks are: the fewest unless told. Raises `OperatorError` for what does not fit."""
    fewest = -(-num_ducks // DUCKS_PER_DOMAIN)
    count = num_domains or fewest
    if not 1 <= num_ducks <= MAX_DOMAINS * DUCKS_PER_DOMAIN:
        raise OperatorError(f"--ducks {num_ducks}: a lab has 1 to {MAX_DOMAINS * DUCKS_PER_DOMAIN} ducks")
    if not fewest <= count <= min(MAX_DOMAINS, num_ducks):
        raise OperatorError(f"--domains {count}: {num_ducks} ducks fit in {fewest} to {min(MAX_DOMAINS, num_ducks)}")
    return count


def lab_mac(lab_id: str, domain_number: int, host_number: int) -> str:
    """Locally administered (02), so no card in the world has it; `lab_id` is 4 hex digits."""
    return f"02:dc:{lab_id[:2]}:{lab_id[2:]}:{domain_number:02x}:{host_number:02x}"
