"""The catalogue of published models: names, sources and shapes, known before anything is downloaded."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from duckfleet.runtime.planner import FfnShape, ModelShape

from .errors import UnknownModel


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A published model. Counts follow the names of the model's own config; 0 or None where it has no such thing."""

    name: str
    model_type: str
    source: str
    format: str  # lossless for the published weights, or the usual choice where they are rounded anyway
    hidden: int
    layers: int
    heads: int
    vocab: int
    aliases: tuple[str, ...] = ()
    dense_layers: int = 0
    dense_intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0  # of all shared experts together; 0: shared_experts * moe_intermediate
    kv_heads: int | None = None
    head_dim: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    qk_nope_head_dim: int | None = None
    v_head_dim: int | None = None
    index_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None
    mtp_layers: int = 0
    tied_embeddings: bool = False

    def shape(self, *, with_mtp: bool = True) -> ModelShape:
        """What the planner cuts; MTP layers follow the decoder's own, as in the checkpoint."""
        dense = FfnShape(self.dense_intermediate) if self.dense_intermediate else None
        if not self.experts:
            assert dense is not None
            return ModelShape(self.name, self.hidden, (dense,) * self.layers)
        shared = self.shared_intermediate or self.shared_experts * self.moe_intermediate
        sparse = FfnShape(self.moe_intermediate, self.experts, shared)
        num_sparse = self.layers - self.dense_layers + (self.mtp_layers if with_mtp else 0)
        first = (dense,) * self.dense_layers if dense else ()
        return ModelShape(self.name, self.hidden, (*first, *(sparse,) * num_sparse))


@cache
def catalogue() -> Mapping[str, CatalogueEntry]:
    """Every entry by its name, in the order of the file."""
    text = files("duckfleet.runtime.data").joinpath("models.toml").read_text(encoding="utf-8")
    known = {f.name for f in fields(CatalogueEntry)}
    entries: dict[str, CatalogueEntry] = {}
    for name, values in tomllib.loads(text).items():
        unknown = set(values) - known
        if unknown:
            raise ValueError(f"models.toml, {name}: unknown keys {', '.join(sorted(unknown))}")
        values["aliases"] = tuple(values.get("aliases", ()))
        entries[name] = CatalogueEntry(name=name, **values)
    return entries


def find_entry(name: str) -> CatalogueEntry | None:
    """The entry of this name or alias (case does not matter), or None."""
    wanted = name.lower()
    for entry in catalogue().values():
        if wanted == entry.name or wanted in entry.aliases:
            return entry
    return None


def similar_names(name: str) -> list[str]:
    """Names of the catalogue that somebody who wrote `name` may have meant, best first, at most three."""
    spelled = {alias: entry.name for entry in catalogue().values() for alias in (entry.name, *entry.aliases)}
    close = difflib.get_close_matches(name.lower(), spelled, n=6, cutoff=0.6)
    return list(dict.fromkeys(spelled[alias] for alias in close))[:3]


def entry(name: str) -> CatalogueEntry:
    """Like `find_entry`, but raises `UnknownModel` with the names there are."""
    found = find_entry(name)
    if found is None:
        close = similar_names(name)
        meant = f"did you mean {' or '.join(close)}? It" if close else "it"
        raise UnknownModel(f"no model {name!r} in the catalogue; {meant} knows {', '.join(catalogue())}")
    return found
