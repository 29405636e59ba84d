"""Models: where they come from, what a checkpoint holds, and how its weights become chunks and a decoder."""

from .catalogue import CatalogueEntry, catalogue
from .checkpoint import Checkpoint
from .chunk_store import ChunkStore
from .errors import BadCheckpoint, BadSource, ModelError, NoSpace, SourceUnreachable, UnknownModel, UnsupportedModel
from .load import load_decoder
from .prepare import load_plans, prepare
from .progress import Progress
from .store import ModelStore, StoredModel
from .tokenizer import load_dialect, load_tokenizer

__all__ = [
    "BadCheckpoint",
    "BadSource",
    "CatalogueEntry",
    "Checkpoint",
    "ChunkStore",
    "ModelError",
    "ModelStore",
    "NoSpace",
    "Progress",
    "SourceUnreachable",
    "StoredModel",
    "UnknownModel",
    "UnsupportedModel",
    "catalogue",
    "load_decoder",
    "load_dialect",
    "load_plans",
    "load_tokenizer",
    "prepare",
]
