"""A zoo of tiny engines, right and wrong, for tests: whole engine directories, written in milliseconds.

Each is a real one-layer decoder (embedding, learned positions, causal attention per sequence, a gated step, norm) as a
packed ONNX graph that reads and attends as the project's own graphs do. A kind says what is wrong with it, if anything;
`KINDS` (zoo_kinds) holds what the proof must say of it.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from resources.checkpoint import Tokenizer, TokenizerPolicy, open_checkpoint
from resources.engine.config import FOREIGN_PLAN, read_engine_record, write_engine_config
from resources.records import TAP, EngineRecord, Limits, model_key
from tests.tiny import tiny_gguf
from tests.zoo_graph import ELEMENT, HIDDEN, Graph, attention
from tests.zoo_kinds import KINDS, LIMITS, TENSORRT_LLMS, Kind, exclusive

__all__ = [
    "GRAPH_FILE",
    "HIDDEN",
    "KINDS",
    "LIMITS",
    "TENSORRT_LLMS",
    "write_engine",
    "write_foreign_engine",
]

GRAPH_FILE = "model.onnx"
GRAPH_VERSION = "zoo"


def write_engine(
    kind: str,
    directory: Path,
    seed: int = 0,
    *,
    precision: str = "float32",
    to_plan: Callable[[Path, Path, Limits], Mapping[str, str]] | None = None,
) -> EngineRecord:
    """Writes an engine of `kind` into `directory` (made if missing) and gives its record.

    It is for ONNX Runtime; or for TensorRT, with `to_plan`, which makes a plan of a graph and gives the versions.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spec, tokenizer = KINDS[kind], _tokenizer()
    graph, plan = directory / GRAPH_FILE, directory / GRAPH_FILE
    onnx.save(_model(spec, tokenizer.vocab_size, precision, seed), graph)
    versions: Mapping[str, str] = {"onnx": onnx.__version__}
    if to_plan:
        plan = directory / FOREIGN_PLAN
        versions = to_plan(graph, plan, spec.limits)
        graph.unlink()
    for name, content in _tokenizer_files().items():
        (directory / name).write_bytes(content)
    checkpoint_digest = f"zoo {kind} {seed}"
    write_engine_config(
        directory,
        backend="tensorrt" if to_plan else "onnxruntime",
        plan=plan.name,
        pretrained={
            "dtype": precision,
            "hidden_size": HIDDEN,
            "vocab_size": tokenizer.vocab_size,
            "num_hidden_layers": 1,
        },
        limits=spec.limits,
        kv_cache_type=spec.kv_cache_type,
        provenance={
            "model_key": model_key(
                checkpoint_digest=checkpoint_digest,
                graph_version=GRAPH_VERSION,
                tokenizer_id=tokenizer.tokenizer_id,
                tap=TAP,
                dtype=precision,
            ),
            "checkpoint_digest": checkpoint_digest,
            "tokenizer_id": tokenizer.tokenizer_id,
            "graph_version": GRAPH_VERSION,
            "versions": versions,
        },
    )
    return read_engine_record(directory)


def write_foreign_engine(
    directory: Path, seed: int = 0, *, precision: str = "float32", to_plan: Callable[[Path, Path, Limits], object]
) -> None:
    """Writes the engine "tensorrt-llm-inputs" as TensorRT-LLM leaves one: config.json and plan; and a tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    spec, tokenizer = KINDS["tensorrt-llm-inputs"], _tokenizer()
    graph = directory / GRAPH_FILE
    onnx.save(_model(spec, tokenizer.vocab_size, precision, seed), graph)
    to_plan(graph, directory / FOREIGN_PLAN, spec.limits)
    graph.unlink()
    tokenizer.save(directory)
    document = {
        "version": "0.20.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": precision,
            "hidden_size": HIDDEN,
            "vocab_size": tokenizer.vocab_size,
            "num_hidden_layers": 1,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        },
        "build_config": {
            "max_batch_size": spec.limits.max_batch_size,
            "max_num_tokens": spec.limits.max_num_tokens,
            "max_input_len": spec.limits.max_input_len,
            "kv_cache_type": "DISABLED",
            "plugin_config": {"remove_input_padding": True, "gpt_attention_plugin": precision},
        },
    }
    (directory / "config.json").write_text(json.dumps(document))


_LONG = {"host_runtime_perf_knobs", "host_context_progress"}
"""64-bit in TensorRT-LLM's engines."""


def _model(spec: Kind, vocab_size: int, precision: str, seed: int) -> onnx.ModelProto:
    g = Graph(precision, np.random.default_rng(seed))
    state = _states(g, spec, vocab_size)
    if spec.state:
        state = spec.state(g, state)
    ids = g.long("last_token_ids")
    index = spec.gather(g, ids) if spec.gather else exclusive(g, ids)
    out = g.op("Gather", state, index)
    if spec.output:
        out = spec.output(g, out)
    g.nodes.append(helper.make_node("Identity", [out], ["hidden_states"]))
    shapes = {**spec.inputs, **({spec.extra_input: ["num_tokens"]} if spec.extra_input else {})}
    graph = helper.make_graph(
        g.nodes,
        "zoo",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64 if name in _LONG else TensorProto.INT32, shape)
            for name, shape in shapes.items()
        ],
        [helper.make_tensor_value_info("hidden_states", ELEMENT[precision], ["num_sequences", HIDDEN])],
        g.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _states(g: Graph, spec: Kind, vocab_size: int) -> str:
    """Every token's state after the norm, [T, hidden]."""
    rows = g.random.standard_normal((vocab_size, HIDDEN))
    equal = g.random.random(vocab_size) < spec.equal_rows
    rows[equal] = rows[0]
    x = g.op("Gather", g.floats(rows), "input_ids")
    if spec.embed:
        x = spec.embed(g, x)
    positions = spec.positions(g) if spec.positions else "position_ids"
    x = g.op("Add", x, g.op("Gather", g.normal(LIMITS.max_num_tokens, HIDDEN), positions))
    x = g.op("Add", x, attention(g, x, spec.attention))
    width = 2 * HIDDEN
    gate = g.op("Tanh", g.op("MatMul", x, g.normal(HIDDEN, width, scale=HIDDEN**-0.5)))
    x = g.op("Add", x, g.op("MatMul", gate, g.normal(width, HIDDEN, scale=width**-0.5)))
    mean_square = g.op("ReduceMean", g.op("Mul", x, x), axes=[-1], keepdims=1)
    return g.op("Div", x, g.op("Sqrt", g.op("Add", mean_square, g.floats(1e-5))))


@functools.cache
def _tokenizer_files() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _tokenizer().save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return open_checkpoint(str(tiny_gguf(Path(folder) / "tiny.gguf"))).tokenizer(TokenizerPolicy())
