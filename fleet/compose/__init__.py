"""The composition root: the one part of fleet that puts the runtime's parts together, imported lazily inside.

What comes back are plain records, so that the commands know nothing of the runtime.
"""

from duckfleet.fleet.compose.benching import Bench, available_benches, run_bench
from duckfleet.fleet.compose.decoding import BareDecoder, bare_decoder
from duckfleet.fleet.compose.models import (
    KnownModel,
    ModelOnDisk,
    convert_model,
    damaged_models,
    find_model,
    known_models,
    list_models,
    pull_model,
    remove_model,
    write_q8_0,
)
from duckfleet.fleet.compose.plans import (
    PlannedBytes,
    PlannedDuck,
    PreparedPlan,
    plan_budget,
    plan_of_generation,
    prepare,
    random_chunks,
    read_plan,
)
from duckfleet.fleet.compose.progress import Progress, quiet
from duckfleet.fleet.compose.quality import Quality, evaluate
from duckfleet.fleet.compose.server import import_server, run_server
from duckfleet.fleet.compose.talking import chat

__all__ = [
    "BareDecoder",
    "Bench",
    "KnownModel",
    "ModelOnDisk",
    "PlannedBytes",
    "PlannedDuck",
    "PreparedPlan",
    "Progress",
    "Quality",
    "available_benches",
    "bare_decoder",
    "chat",
    "convert_model",
    "damaged_models",
    "evaluate",
    "find_model",
    "import_server",
    "known_models",
    "list_models",
    "plan_budget",
    "plan_of_generation",
    "prepare",
    "pull_model",
    "quiet",
    "random_chunks",
    "read_plan",
    "remove_model",
    "run_bench",
    "run_server",
    "write_q8_0",
]
