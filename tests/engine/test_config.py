import json
from pathlib import Path

import pytest

from resources.engine.config import read_engine_config, read_engine_record, require_raw_path, require_unchanged
from resources.errors import EngineError
from resources.records import Limits
from tests import zoo

FOREIGN = {
    "pretrained_config": {
        "dtype": "float16",
        "hidden_size": 64,
        "vocab_size": 100,
        "num_hidden_layers": 2,
        "mapping": {"world_size": 1, "tp_size": 1},
    },
    "build_config": {
        "max_batch_size": 8,
        "max_num_tokens": 256,
        "max_input_len": 32,
        "kv_cache_type": "DISABLED",
        "plugin_config": {"remove_input_padding": True},
    },
}


def foreign(directory: Path, path: tuple[str, ...] = (), value: object = None) -> Path:
    """A TensorRT-LLM engine directory, with one field changed (or removed, for None)."""
    document = json.loads(json.dumps(FOREIGN))
    section = document
    for name in path[:-1]:
        section = section[name]
    if path:
        section[path[-1]] = value
        if value is None:
            del section[path[-1]]
    (directory / "config.json").write_text(json.dumps(document))
    (directory / "rank0.engine").write_bytes(b"plan")
    return directory


def test_reads_what_this_project_wrote(tmp_path):
    record = zoo.write_engine("exclusive-end", tmp_path / "engine")
    config = read_engine_config(tmp_path / "engine")
    assert (config.backend, config.dtype, config.hidden_size) == ("onnxruntime", "float32", zoo.HIDDEN)
    assert config.limits == zoo.LIMITS
    assert record == read_engine_record(tmp_path / "engine")
    assert record.directory == "engine"
    require_raw_path(config)
    require_unchanged(tmp_path / "engine", config)


def test_reads_a_foreign_engine_whose_id_takes_in_its_plan(tmp_path):
    config = read_engine_config(foreign(tmp_path))
    assert (config.backend, config.plan, config.provenance) == ("tensorrt", "rank0.engine", None)
    assert config.limits == Limits(8, 256, 32)
    require_raw_path(config)
    (tmp_path / "rank0.engine").write_bytes(b"another plan")
    assert read_engine_config(tmp_path).engine_id != config.engine_id


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("build_config", "kv_cache_type"), "PAGED", "kv_cache_type is paged; expected disabled"),
        (("build_config", "kv_cache_type"), "KVCacheType.CONTINUOUS", "kv_cache_type is continuous"),
        (("build_config", "kv_cache_type"), None, "kv_cache_type is not given"),
        (("build_config", "plugin_config", "remove_input_padding"), False, "remove_input_padding is not true"),
        (("build_config", "plugin_config"), None, "remove_input_padding is not true"),
        (("pretrained_config", "mapping", "world_size"), 2, "world_size is 2; expected 1"),
    ],
)
def test_an_engine_that_the_raw_path_cannot_serve_is_named_with_what_to_build(tmp_path, path, value, says):
    config = read_engine_config(foreign(tmp_path, path, value))
    with pytest.raises(EngineError, match=says) as caught:
        require_raw_path(config)
    assert "build it again" in str(caught.value)


@pytest.mark.parametrize("spelling", ["disabled", "DISABLED", "KVCacheType.DISABLED"])
def test_a_disabled_cache_is_read_in_every_spelling_in_use(tmp_path, spelling):
    require_raw_path(read_engine_config(foreign(tmp_path, ("build_config", "kv_cache_type"), spelling)))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("pretrained_config",), None, "pretrained_config is missing"),
        (("build_config",), [], "build_config is missing"),
        (("pretrained_config", "hidden_size"), None, "hidden_size is None; expected int"),
        (("pretrained_config", "hidden_size"), True, "hidden_size is True; expected int"),
        (("pretrained_config", "vocab_size"), 0, "vocab_size is 0; expected at least 1"),
        (("pretrained_config", "dtype"), "float8", "dtype is 'float8'; expected one of"),
        (("build_config", "max_num_tokens"), "many", "max_num_tokens is 'many'; expected int"),
    ],
)
def test_a_malformed_field_is_named(tmp_path, path, value, says):
    with pytest.raises(EngineError, match=says):
        read_engine_config(foreign(tmp_path, path, value))


@pytest.mark.parametrize(("content", "says"), [(None, "is missing"), (b"{", "cannot be read"), (b"[]", "is missing")])
def test_a_configuration_that_is_none_is_an_engine_error(tmp_path, content, says):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(EngineError, match=says):
        read_engine_config(tmp_path)


def unlisted(directory: Path, names) -> None:
    document = json.loads((directory / "config.json").read_text())
    for name in names:
        del document["fabric"]["files"][name]
    (directory / "config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: unlisted(d, [p.name for p in d.iterdir() if p.name != "config.json"]),
        lambda d: unlisted(d, [zoo.GRAPH_FILE]),
        lambda d: (unlisted(d, [zoo.GRAPH_FILE]), (d / zoo.GRAPH_FILE).unlink()),
        lambda d: (d / "model.onnx.data").write_bytes(b""),
        lambda d: (d / "tokenizer.json").unlink(),
        lambda d: (d / "folder").mkdir(),
    ],
    ids=["nothing recorded", "plan not recorded", "no plan", "one more file", "one file fewer", "a folder"],
)
def test_a_folder_holds_the_recorded_files_and_no_more(tmp_path, change):
    zoo.write_engine("exclusive-end", tmp_path)
    change(tmp_path)
    with pytest.raises(EngineError, match="which were recorded when"):
        require_unchanged(tmp_path, read_engine_config(tmp_path))


def test_a_file_that_changed_since_the_build_is_named(tmp_path):
    zoo.write_engine("exclusive-end", tmp_path)
    config = read_engine_config(tmp_path)
    with (tmp_path / zoo.GRAPH_FILE).open("ab") as graph:
        graph.write(b"\0")
    with pytest.raises(EngineError, match=zoo.GRAPH_FILE):
        require_unchanged(tmp_path, config)
