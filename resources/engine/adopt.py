"""An engine that this project did not build -> one of its engine directories.

Contract: the foreign folder is only read. Its plan is copied, its configuration kept word for word with a `fabric`
section beside it, and the tokenizer that the operator names saved with them: a plan does not say which tokenizer its
token ids are of. What made the plan is unknown, so its digest stands for checkpoint and graph. Nothing is proved here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from resources.checkpoint import Tokenizer
from resources.engine.config import (
    CONFIG_FILE,
    FOREIGN,
    FOREIGN_PLAN,
    foreign_model_key,
    read_engine_config,
    read_engine_record,
    require_raw_path,
    write_adopted_config,
)
from resources.engine.folder import building_folder, put_in_place
from resources.errors import EngineError
from resources.records import EngineRecord


def adopt_engine(directory: Path, tokenizer: Tokenizer, engines_folder: Path) -> EngineRecord:
    """Copies the foreign engine in `directory` (TensorRT-LLM's layout) under `engines_folder` and gives its record.

    The same engine with the same tokenizer is copied once. Refuses (`EngineError`) an engine that cannot take the raw
    path, one that has a `fabric` section already, and a tokenizer with more tokens than the engine.
    """
    config = read_engine_config(directory)
    if config.provenance is not None:
        raise EngineError(
            f"{directory} has a fabric section: it is one of this project's engines; register it as it is"
        )
    require_raw_path(config)
    if tokenizer.learned_size > config.vocab_size:
        raise EngineError(
            f"the tokenizer has {tokenizer.learned_size} tokens and the engine in {directory} takes "
            f"{config.vocab_size}; name the model that the engine was built from"
        )
    with building_folder(engines_folder) as building:
        shutil.copyfile(directory / FOREIGN_PLAN, building / FOREIGN_PLAN)
        tokenizer.save(building)
        write_adopted_config(
            building,
            json.loads((directory / CONFIG_FILE).read_bytes()),
            provenance={
                "model_key": foreign_model_key(config, tokenizer.tokenizer_id),
                "checkpoint_digest": config.engine_id,
                "tokenizer_id": tokenizer.tokenizer_id,
                "graph_version": FOREIGN,
                "versions": {},
            },
        )
        return read_engine_record(put_in_place(building, engines_folder))
