from collections.abc import Callable, Sequence
from typing import Any

Missing = tuple[int, int, int, int, int, int, int]

class LinkError(Exception): ...

class SessionConfig:
    def __init__(
        self,
        *,
        session: int,
        generation: int,
        hidden: int,
        max_tokens: int,
        max_request_bytes: int,
        wire_dtype: int,
        tag_algorithm: int,
        min_probe_us: int,
        max_probe_us: int,
        gap_us: int,
    ) -> None: ...

class DuckConfig:
    def __init__(self, *, rank: int, address: str, port: int, key_id: int, key: bytes) -> None: ...

class VectorSpec:
    def __init__(self, *, duck: int, slice: int, part: int) -> None: ...

class DomainConfig:
    def __init__(
        self,
        *,
        name: str,
        host_address: str,
        host_port: int,
        broadcast: str,
        data_port: int,
        fragment_bytes: int,
        key_id: int,
        key: bytes,
        ducks: Sequence[DuckConfig],
        vectors: Sequence[VectorSpec],
        vectors_of_layer: Sequence[Sequence[int]],
    ) -> None: ...

class DomainDuties:
    def __init__(self, *, vectors: Sequence[VectorSpec], vectors_of_layer: Sequence[Sequence[int]]) -> None: ...

class Ticket:
    @property
    def lane(self) -> int: ...
    @property
    def layer(self) -> int: ...

class Fabric:
    def __init__(
        self,
        *,
        session: SessionConfig,
        domains: Sequence[DomainConfig],
        transport: str,
        spin_us: int,
        deadline_us: int,
        silence_floor_us: int,
        silence_medians: int,
        silence_cold_us: int,
    ) -> None: ...
    def on_silence(self, handler: Callable[[int, list[Missing]], bool]) -> None: ...
    def set_duties(self, domains: Sequence[DomainDuties]) -> None: ...
    def rekey(self, domain: int, duck: int, key_id: int, key: bytes) -> None: ...
    def last_pause_us(self) -> int: ...
    def submit(self, layer: int, x: Any, experts: Any, weights: Any, lane: int) -> Ticket | None: ...
    def wait(
        self, ticket: Ticket, out: Any
    ) -> tuple[
        int,
        tuple[float, float, float, float],
        tuple[int, list[Missing]] | None,
    ]: ...
    def stats(self) -> list[dict[str, Any]]: ...
    def ports(self) -> list[int]: ...
    def max_tokens(self) -> int: ...
    def receive_buffer_bytes(self) -> list[int]: ...
    def close(self) -> None: ...

def transports() -> list[str]: ...
def available_tag_algorithms() -> int: ...
