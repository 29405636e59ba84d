"""Our own decoder, assembled from a config: attention on the host, FFN on a fabric.

`Decoder` itself is in `duckfleet.runtime.decoder.decoder`, and reached lazily from here: the records of a config are
wanted where torch is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import DecoderConfig
from .errors import ContextFull, UnsupportedConfig
from .families import decoder_config

if TYPE_CHECKING:
    from .decoder import Decoder
    from .kv_cache import KvCache

__all__ = ["ContextFull", "Decoder", "DecoderConfig", "KvCache", "UnsupportedConfig", "decoder_config"]


def __getattr__(name: str) -> Any:
    if name == "Decoder":
        from .decoder import Decoder

        return Decoder
    if name == "KvCache":
        from .kv_cache import KvCache

        return KvCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
