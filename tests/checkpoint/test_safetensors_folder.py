"""Every whole folder is read as it is; every other one is refused by name."""

import json
import os
import pickle
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from resources.checkpoint import safetensors_folder
from resources.checkpoint.safetensors_folder import CONFIG, SafetensorsFolder, read_json
from resources.errors import CheckpointError

WEIGHTS = {
    "model.norm.weight": np.array([1.5, -2.25, 3.0, 1 / 3], dtype=np.float32),
    "model.a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "model.b.weight": np.full((3, 1), -0.1, dtype=np.float32),
}
SHARDS = {"model-00001-of-00002.safetensors": ["model.norm.weight"], "model-00002-of-00002.safetensors": [*WEIGHTS][1:]}


def write(folder, *, sharded=False, dtype=np.float32, config=None):
    """A folder as save_pretrained leaves it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "tiny"}))
    weights = {name: weight.astype(dtype) for name, weight in WEIGHTS.items()}
    if not sharded:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    for file, names in SHARDS.items():
        save_file({name: weights[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in SHARDS.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_come_out_as_float32_of_what_is_stored(tmp_path, sharded, dtype):
    folder = SafetensorsFolder(write(tmp_path / "m", sharded=sharded, dtype=dtype))
    assert folder.shapes == {name: weight.shape for name, weight in WEIGHTS.items()}
    assert (folder.name, folder.config) == ("m", {"model_type": "tiny"})
    for name, weight in WEIGHTS.items():
        read = folder.tensor(name)
        assert (read.dtype, read.flags.c_contiguous) == (np.float32, True)
        np.testing.assert_array_equal(read, weight.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7])
def test_a_weight_is_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(safetensors_folder, "PIECE", piece)
    folder = SafetensorsFolder(write(tmp_path / "m"))
    for name, weight in WEIGHTS.items():
        np.testing.assert_array_equal(folder.tensor(name), weight)
        pieces = list(folder.pieces(name))
        assert all(len(p) == 1 or p.size <= piece for p in pieces)
        np.testing.assert_array_equal(np.concatenate(pieces), weight)


def test_a_number_alone_and_an_empty_tensor_are_read(tmp_path):
    write(tmp_path / "m")
    save_file(
        {"one": np.array(2.5, dtype=np.float32), "none": np.empty((0, 3), dtype=np.float32)},
        tmp_path / "m" / "model.safetensors",
    )
    folder = SafetensorsFolder(tmp_path / "m")
    assert (folder.tensor("one").shape, float(folder.tensor("one"))) == ((), 2.5)
    assert folder.tensor("none").shape == (0, 3)


@pytest.mark.parametrize("other", [WEIGHTS["model.a.weight"].T, np.ones((2, 3), dtype=np.float16), None])
def test_a_file_that_became_another_is_an_error_of_the_checkpoint(tmp_path, other):
    folder = SafetensorsFolder(write(tmp_path / "m"))
    weights = {name: weight for name, weight in WEIGHTS.items() if name != "model.a.weight"}
    if other is not None:
        weights["model.a.weight"] = np.ascontiguousarray(other)
    save_file(weights, tmp_path / "m" / "model.safetensors")
    with pytest.raises(CheckpointError, match="changed since it was opened"):
        folder.tensor("model.a.weight")


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8])
def test_weights_of_another_type_are_refused_by_name(tmp_path, dtype):
    folder = SafetensorsFolder(write(tmp_path / "m", dtype=dtype))
    with pytest.raises(CheckpointError, match=r"'model\.a\.weight' .* expected one of F32, F16, BF16"):
        folder.tensor("model.a.weight")


def test_links_into_a_cache_are_followed(tmp_path):
    write(tmp_path / "blobs", sharded=True)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(f"../blobs/{file.name}")
    linked, real = SafetensorsFolder(tmp_path / "snapshot"), SafetensorsFolder(tmp_path / "blobs")
    np.testing.assert_array_equal(linked.tensor("model.a.weight"), WEIGHTS["model.a.weight"])
    assert linked.digest == real.digest


def test_the_digest_covers_configuration_and_weights_and_nothing_else(tmp_path):
    digest = SafetensorsFolder(write(tmp_path / "m", sharded=True)).digest
    (tmp_path / "m" / "README.md").write_text("a model")
    assert SafetensorsFolder(tmp_path / "m").digest == digest
    for file in ("config.json", *SHARDS):
        changed = write(tmp_path / f"changed-{file}", sharded=True)
        content = bytearray((changed / file).read_bytes())
        if file == "config.json":
            content += b"\n"
        else:
            content[-1] ^= 1
        (changed / file).write_bytes(content)
        assert SafetensorsFolder(changed).digest != digest


FIRST, SECOND = SHARDS


def _rename(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(FIRST, f"../{folder.name}/{FIRST}"))


def _cut(folder):
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-4])


def _twice(folder):
    save_file({"model.norm.weight": WEIGHTS["model.norm.weight"], **_of(SECOND)}, folder / SECOND)


def _of(shard):
    return {name: WEIGHTS[name] for name in SHARDS[shard]}


def _only_pickle(folder):
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb()))


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize(("damage", "sentence"), [
    (lambda f: (f / FIRST).unlink(), rf"{FIRST} cannot be read: .*No such file.*; fetch"),
    (_cut, rf"{SECOND} is damaged or cut short"),
    (lambda f: (f / FIRST).write_bytes(b""), rf"{FIRST} is damaged or cut short"),
    (lambda f: (f / FIRST).write_bytes(pickle.dumps(_Bomb())), rf"{FIRST} is damaged or cut short"),
    (_twice, rf"'model\.norm\.weight' in both {FIRST} and {SECOND}"),
    (lambda f: save_file({**_of(SECOND), "x": np.ones(2)}, f / SECOND), rf"'x' is in .*{SECOND}, and not where"),
    (lambda f: save_file({"model.b.weight": np.ones(2)}, f / SECOND), rf"'model\.a\.weight' is not in .*{SECOND}"),
    (_rename, rf"names the file '\.\./m/{FIRST}'; expected the name of a file beside it"),
    (lambda f: (f / "model.safetensors.index.json").unlink(), "has shards and no model.safetensors.index.json"),
    (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "has no 'weight_map'"),
    (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}'), "has no 'weight_map'"),
    (lambda f: save_file({"x": np.ones(2)}, f / "model.safetensors"), "model.safetensors and an index of other files"),
    (lambda f: (f / "config.json").unlink(), "has no config.json; name a folder"),
    (lambda f: (f / "config.json").rename(f / "small.gguf"), r"no config\.json; it holds small\.gguf: name that file"),
    (lambda f: (f / "config.json").rename(f / "adapter_config.json"), "holds an adapter .*: merge it into its base"),
    (lambda f: (f / "adapter_config.json").write_text("{}"), "holds an adapter .* whole model"),
    (lambda f: (f / "config.json").write_text("[]"), "holds a list; expected a JSON object"),
    (lambda f: (f / "config.json").write_text('{"a": 1, "a": 2}'), "'a' stands twice"),
    (lambda f: (f / "config.json").write_bytes(b'"\xff"'), "is not JSON"),
    (lambda f: (f / "config.json").write_text("[" * 100_000), "is not JSON"),
    (_only_pickle, r"only as pytorch_model\.bin, a pickle, .*save_pretrained"),
    (lambda f: [file.unlink() for file in f.glob("model*")], "has neither model.safetensors nor"),
    (shutil.rmtree, "is not a folder"),
])  # fmt: skip
def test_a_folder_that_is_not_whole_is_refused_by_name(tmp_path, damage, sentence):
    folder = write(tmp_path / "m", sharded=True)
    damage(folder)
    with pytest.raises(CheckpointError, match=sentence):
        SafetensorsFolder(folder)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 60, 100, -1])
def test_a_single_file_cut_anywhere_is_refused(tmp_path, n):
    folder = write(tmp_path / "m")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:n])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or cut short"):
        SafetensorsFolder(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("digested", [False, True])
def test_a_file_written_again_with_other_content_of_the_same_size_is_an_error(tmp_path, file, digested):
    folder = SafetensorsFolder(write(tmp_path / "m"))
    if digested:
        _ = folder.digest
    path = tmp_path / "m" / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    # A file system's clock may be too coarse for a test.
    os.utime(path, (1, 1))
    with pytest.raises(CheckpointError, match=f"{file} changed since it was opened"):
        _ = folder.digest
    if file != CONFIG:
        with pytest.raises(CheckpointError, match=f"{file} changed since it was opened"):
            folder.tensor("model.a.weight")


def test_a_weight_file_that_goes_away_is_an_error_of_the_checkpoint(tmp_path):
    folder = SafetensorsFolder(write(tmp_path / "m"))
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        folder.tensor("model.a.weight")
    with pytest.raises(CheckpointError, match="cannot be read"):
        _ = folder.digest


def test_a_json_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.json cannot be read: No such file"):
        read_json(tmp_path / "none.json")
