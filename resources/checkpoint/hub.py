"""A model of the Hugging Face hub, by its id, as a folder on this machine.

Contract: what the local hub cache holds whole is used as it is, with no network; only configuration, tokenizer and
safetensors files are ever fetched. Where the cache lies, which server is asked, and offline work are huggingface_hub's
settings (HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN:
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resources.checkpoint.safetensors_folder import ADAPTER, CONFIG, INDEX, SINGLE, conversion, read_json
from resources.checkpoint.tokenizer import TOKENIZER_FILE
from resources.checkpoint.tokenizer_folder import CONFIG_FILE, FILES
from resources.errors import CheckpointError

TOKENIZER_FILES = (TOKENIZER_FILE, CONFIG_FILE)
"""Without these, what the cache holds is not whole."""

SMALL_FILES = (CONFIG, INDEX, ADAPTER, *FILES)
"""All that is fetched but weights; an adapter's configuration is a reason to refuse the model."""


@dataclass(frozen=True)
class HubId:
    """`owner/name`, at a branch, tag or commit where one is named."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse_hub_id(spec: str) -> HubId | None:
    """`owner/name` or `owner/name@revision`; None where `spec` is neither."""
    found = _HUB_ID.fullmatch(spec)
    return HubId(found["repository"], found["revision"]) if found else None


def fetch(hub_id: HubId) -> Path:
    """The folder of the model in the local hub cache, downloaded where it is not there whole."""
    cached = _cached(hub_id)
    return cached if cached is not None else _downloaded(hub_id)


# What a hub id may be made of: https://huggingface.co/docs/hub/repositories-settings; a revision may hold slashes.
_HUB_ID = re.compile(r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)


def _cached(hub_id: HubId) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _snapshot(hub_id, SMALL_FILES, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    wanted = [CONFIG, *TOKENIZER_FILES, *(_shards(folder) or [SINGLE])]
    return folder if all((folder / name).exists() for name in wanted) else None


def _downloaded(hub_id: HubId) -> Path:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        folder = _snapshot(hub_id, (*SMALL_FILES, SINGLE))
        if shards := _shards(folder):
            _snapshot(hub_id, shards)
        elif not (folder / SINGLE).exists():
            raise CheckpointError(
                f"{hub_id} has no {SINGLE} on the hub, and nothing else is fetched; where you trust it, convert it "
                f"with transformers and name the folder: {conversion(hub_id.repository, 'FOLDER')}"
            )
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise CheckpointError(
            f"{hub_id} is gated: accept its terms on the hub, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{hub_id.repository} has no revision {hub_id.revision!r} on the hub; name a branch, tag or commit of it"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{str(hub_id)!r} is neither a folder here nor a model on the hub that you may read; mend the name, or log "
            "in with `hf auth login` where it is private"
        ) from error
    except Exception as error:  # no network, a server's error, a full disk: of many libraries' kinds
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{hub_id} is not whole in the local hub cache and can't be fetched ({type(error).__name__}: {reason}); "
            f"where there is a network run `hf download {hub_id.repository}`, or name a local folder"
        ) from error
    return folder


def _snapshot(hub_id: HubId, files: Sequence[str], *, local_files_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            hub_id.repository,
            revision=hub_id.revision,
            allow_patterns=list(files),
            local_files_only=local_files_only,
        )
    )


def _shards(folder: Path) -> list[str]:
    """The files that the folder's index names; empty where it has none."""
    if not (folder / INDEX).exists():
        return []
    weight_map = read_json(folder / INDEX).get("weight_map")
    files = weight_map.values() if isinstance(weight_map, dict) else ()
    return sorted({file for file in files if isinstance(file, str) and file.endswith(".safetensors")})
