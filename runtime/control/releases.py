"""Host and ducks of different releases: which is no error while they speak the same protocol, but should be known."""

from __future__ import annotations

from importlib import metadata


def host_release() -> str:
    """The version of the duckfleet that runs here."""
    return metadata.version("duckfleet")


def release_remark(duckd_version: str) -> str:
    """What to tell about a duckd of this version; empty when it is ours, or was not said."""
    ours = host_release()
    if duckd_version in ("", ours):
        return ""
    return (
        f"runs duckd {duckd_version}, this host is duckfleet {ours}: they speak the same protocol and work together; "
        "to bring them in line boot the duck from a new image (`duckctl image build`), or update this host"
    )
