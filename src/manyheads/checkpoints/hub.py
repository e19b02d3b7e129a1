"""A model on the hub: its config.json and the headers of its weights, never the weights.

What is in the local cache is used without asking the network. The hub's own client retries an unreachable host for 25
seconds; here one short request decides first, under a deadline that also covers name resolution and answers that
trickle, so that "offline" is said at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from manyheads.errors import BackendError, CheckpointError, ManyheadsError
from manyheads.quoting import shown, shown_path

if TYPE_CHECKING:
    from manyheads.checkpoints.safetensors_header import Header

__all__ = ["fetch_config", "fetch_header"]

_CONFIG_NAME = "config.json"
_PROBE_SECONDS = 3.0  # for each phase of the first request: connecting, and the answer's headers
_PROBE_DEADLINE_SECONDS = 4.0
_CONFIG_DEADLINE_SECONDS = 30.0
_HEADER_DEADLINE_SECONDS = 120.0

_Found = TypeVar("_Found")


def fetch_config(repo_id: str, revision: str | None = None) -> Path:
    """The local path of the config.json of `repo_id` (org/name), from the cache or downloaded into it.

    revision  branch, tag or commit; None is the main branch

    Raises BackendError when huggingface_hub is not installed; CheckpointError, one line, when the hub cannot be
    reached (within about 4 seconds), is switched off (HF_HUB_OFFLINE), or has no such model, revision or file, or asks
    for a login or an agreement first.
    """
    hub = _hub()
    cached = _attempt(repo_id, revision, lambda: hub.try_to_load_from_cache(repo_id, _CONFIG_NAME, revision=revision))
    if isinstance(cached, str):
        return Path(cached)
    _require_reachable(hub, repo_id, revision, _CONFIG_NAME)

    def download() -> Path:
        found = hub.hf_hub_download(repo_id, _CONFIG_NAME, revision=revision, etag_timeout=_PROBE_SECONDS)
        return Path(found)

    return _attempt(repo_id, revision, download, deadline=_CONFIG_DEADLINE_SECONDS)


def fetch_header(repo_id: str, revision: str | None = None) -> Header:
    """The headers of the safetensors files of `repo_id` (org/name), by range requests: kilobytes, never the weights.

    Raises as `fetch_config` does; CheckpointError too when the model has no safetensors or a header contradicts
    itself. The sizes of the files are not known here, so a truncated upload is not found.
    """
    from manyheads.checkpoints.safetensors_header import Header, TensorInfo, tensors_of

    hub = _hub()
    _require_reachable(hub, repo_id, revision, _CONFIG_NAME)
    found = _attempt(
        repo_id,
        revision,
        lambda: hub.get_safetensors_metadata(repo_id, revision=revision),
        deadline=_HEADER_DEADLINE_SECONDS,
    )
    where = f"{repo_id} on the hub"
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    files = tuple(sorted(found.files_metadata))
    for file in files:
        metadata = metadata or dict(found.files_metadata[file].metadata or {})
        entries = {
            name: {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": list(info.data_offsets)}
            for name, info in found.files_metadata[file].tensors.items()
        }
        checked = tensors_of(entries, where=f"{where}: {file}", data_bytes=None)
        twice = next((name for name in checked if name in tensors), None)
        if twice is not None:
            raise CheckpointError(
                f"{where}: tensor {shown(twice)} is in two shards, {file} the second; it must be in one"
            )
        tensors.update(checked)
    return Header(tensors, metadata, repo_id, files)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        needed = 'pip install "manyheads[models]"'
        raise BackendError(
            f"reading a model from the hub needs huggingface_hub, which is not installed: {needed}; a local folder"
            " or config.json needs nothing"
        ) from None
    return huggingface_hub


def _require_reachable(hub: Any, repo_id: str, revision: str | None, filename: str) -> None:
    """One request with a short timeout and no retry: it tells an unreachable hub from a missing model."""
    if hub.is_offline_mode():
        raise CheckpointError(
            f"{repo_id}: not in the local cache, and HF_HUB_OFFLINE is set; expected a folder or config.json here, or"
            " the variable unset"
        )
    _attempt(
        repo_id,
        revision,
        lambda: hub.get_hf_file_metadata(hub.hf_hub_url(repo_id, filename, revision=revision), timeout=_PROBE_SECONDS),
        deadline=_PROBE_DEADLINE_SECONDS,
    )


def _attempt(
    repo_id: str, revision: str | None, work: Callable[[], _Found], *, deadline: float | None = None
) -> _Found:
    """`work()` within `deadline` seconds, its errors told as one line."""
    try:
        return work() if deadline is None else _within(deadline, work)
    except ManyheadsError:
        raise
    except Exception as error:  # noqa: BLE001  the client raises its own kinds, its HTTP library's, and OSError
        raise CheckpointError(f"{shown_path(repo_id)}: {_reason(error, revision)}") from None


def _within(deadline: float, work: Callable[[], _Found]) -> _Found:
    """`work()` in a thread that is left behind when it takes too long: name resolution cannot be interrupted."""
    done: list[_Found] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001  handed to the caller's thread
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(deadline)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {deadline:g} s")
    return done[0]


def _reason(error: Exception, revision: str | None) -> str:
    """What went wrong with the hub and what would help, by the client's kinds of error."""
    from huggingface_hub import constants, errors

    at = revision or "main"
    if isinstance(error, errors.LocalEntryNotFoundError):  # the client's word for a connection lost under way
        return _unreachable(error, constants.ENDPOINT)
    told = (
        (errors.GatedRepoError, "is gated: accept its terms on the hub, then log in (`hf auth login`)"),
        (errors.RepositoryNotFoundError, "the hub has no such model, or it is private and needs `hf auth login`"),
        (errors.RevisionNotFoundError, f"the model has no revision {shown(at)}; expected a branch, a tag or a commit"),
        (errors.NotASafetensorsRepoError, "the model has no .safetensors files; its config.json alone can be priced"),
        (
            errors.EntryNotFoundError,
            f"the model has no {_CONFIG_NAME} at revision {shown(at)}, so there is nothing to read",
        ),
        (errors.HFValidationError, "is not a hub id; expected org/name"),
    )
    for kind, words in told:
        if isinstance(error, kind):
            return words
    if isinstance(error, errors.SafetensorsParsingError):
        return f"the header of its weights cannot be read: {_first_line(error)}"
    response = getattr(error, "response", None)
    if isinstance(error, errors.HfHubHTTPError) and response is not None:
        return f"the hub at {constants.ENDPOINT} answered with status {response.status_code}; expected 200: try later"
    return _unreachable(error, constants.ENDPOINT)


def _unreachable(error: Exception, endpoint: str) -> str:
    return (
        f"not in the local cache, and the hub at {endpoint} cannot be reached ({_first_line(error)}); expected a"
        " connection, or a folder or config.json here"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
