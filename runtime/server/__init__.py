"""The OpenAI-compatible HTTP server."""

from duckfleet.runtime.server.app import create_app
from duckfleet.runtime.server.logs import configure_logging
from duckfleet.runtime.server.serve import HttpServer, ShutdownReport, require_free, run
from duckfleet.runtime.server.settings import SamplingDefaults, ServerSettings

__all__ = [
    "HttpServer",
    "SamplingDefaults",
    "ServerSettings",
    "ShutdownReport",
    "configure_logging",
    "create_app",
    "require_free",
    "run",
]
