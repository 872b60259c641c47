"""A zoo of tiny engines, right and wrong, for tests: whole engine directories, written in milliseconds.

Each is a real one-layer decoder (embedding, learned positions, causal attention per sequence, a gated step, norm) as a
packed ONNX graph that reads and attends as the project's own graphs do. A kind says what is wrong with it, if anything;
`KINDS` holds what the proof must say of it.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from resources.checkpoint import Tokenizer, TokenizerPolicy, open_checkpoint
from resources.engine.config import FOREIGN_PLAN, read_engine_record, write_engine_config
from resources.records import TAP, EngineRecord, GatherConvention, Limits, model_key
from tests.tiny import tiny_gguf
from tests.zoo_graph import ELEMENT, HIDDEN, Graph, Step, attention

LIMITS = Limits(max_batch_size=12, max_num_tokens=64, max_input_len=24)
GRAPH_FILE = "model.onnx"
GRAPH_VERSION = "zoo"

OURS: Mapping[str, list[str | int]] = {
    "input_ids": ["num_tokens"],
    "position_ids": ["num_tokens"],
    "last_token_ids": ["num_sequences"],
    "padded_index": ["num_sequences", "padded_length"],
    "packed_index": ["num_tokens"],
}
TENSORRT_LLMS: Mapping[str, list[str | int]] = {
    "input_ids": ["num_tokens"],
    "position_ids": ["num_tokens"],
    "last_token_ids": ["num_sequences"],
    "context_lengths": ["num_sequences"],
    "host_context_lengths": ["num_sequences"],
    "host_request_types": ["num_sequences"],
    "host_max_attention_window_sizes": [1],
    "host_sink_token_length": [1],
    "host_runtime_perf_knobs": [16],
    "host_context_progress": [1],
}
"""What an engine of TensorRT-LLM exposes with packed input, its attention plugin and no key-value cache."""


@dataclass(frozen=True)
class Kind:
    """How an engine is made, and what must be said of it."""

    reasons: frozenset[str]
    """The reasons that the proof may give; "proved" alone for a right engine."""
    convention: GatherConvention | None = None
    decided_by: str | None = None
    gather: Step | None = None
    """last_token_ids -> the packed tokens to gather, int64 [n]; by default exclusive end."""
    embed: Step | None = None
    """The embedded tokens [T, hidden], changed."""
    positions: Callable[[Graph], str] | None = None
    """In place of position_ids."""
    state: Step | None = None
    """The normed states [T, hidden], changed before the gather."""
    output: Step | None = None
    """The gathered vectors [n, hidden], changed."""
    attention: str = "causal"
    """As `zoo_graph.attention` has it."""
    inputs: Mapping[str, list[str | int]] = field(default_factory=lambda: OURS)
    equal_rows: float = 0.0
    """This share of the embedding's rows, all equal."""
    extra_input: str | None = None
    limits: Limits = LIMITS
    kv_cache_type: str = "DISABLED"


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
    index = spec.gather(g, ids) if spec.gather else _exclusive(g, ids)
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


def _disturbed_by_wrong_metadata(g: Graph, out: str) -> str:
    """Adds the mean distance of each of TensorRT-LLM's host-side inputs from what it must hold in every batch."""
    right = {
        "host_context_lengths": g.op("Cast", "context_lengths", to=TensorProto.FLOAT),
        "host_request_types": g.float32(0),
        "host_max_attention_window_sizes": g.float32(LIMITS.max_input_len),
        "host_sink_token_length": g.float32(0),
        "host_runtime_perf_knobs": g.float32(-1),
        "host_context_progress": g.float32(0),
    }
    for name, expected in right.items():
        off = g.op("Abs", g.op("Sub", g.op("Cast", name, to=TensorProto.FLOAT), expected))
        out = g.op("Add", out, g.cast(g.op("ReduceMean", off, axes=[0], keepdims=1)))
    return out


@functools.cache
def _tokenizer_files() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _tokenizer().save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return open_checkpoint(str(tiny_gguf(Path(folder) / "tiny.gguf"))).tokenizer(TokenizerPolicy())


def _exclusive(g: Graph, ids: str) -> str:
    return g.op("Sub", ids, g.int(1))


def _inclusive(g: Graph, ids: str) -> str:
    return ids


def _clamped(g: Graph, index: str) -> str:
    """`index`, no further than the last token of the pack."""
    return g.op("Min", index, g.op("Sub", g.count("input_ids"), g.int(1)))


def _beyond(g: Graph, ids: str) -> str:
    return _clamped(g, g.op("Add", ids, g.int(1)))


def _one_before_last(g: Graph, ids: str) -> str:
    return g.op("Max", g.op("Sub", ids, g.int(2)), g.column(0))


def _two_before(g: Graph, ids: str) -> str:
    return g.op("Sub", ids, g.int(2))


def _one_for_all(g: Graph, ids: str) -> str:
    """Every sequence gets the last but one's token."""
    last_but_one = g.op("Gather", _exclusive(g, ids), g.int(-2))
    return g.op("Expand", last_but_one, g.op("Shape", ids))


def _clipped(g: Graph, ids: str) -> str:
    return g.op("Min", _exclusive(g, ids), g.int(31))


def _no_further_than_16(g: Graph, ids: str) -> str:
    return g.op("Min", _exclusive(g, ids), g.op("Add", g.column(0), g.int(16)))


def _inclusive_where(condition: Callable[[Graph, str], str]) -> Step:
    """Inclusive end for the sequences (an int64 range [n]) that `condition` picks, exclusive end for the others."""

    def gather(g: Graph, ids: str) -> str:
        sequences = g.range(g.count("last_token_ids"))
        return g.op("Where", condition(g, sequences), _clamped(g, ids), _exclusive(g, ids))

    return gather


def _odd_of_a_full_pack(g: Graph, ids: str) -> str:
    """One token early for odd sequences, in packs of more tokens than any but a full one has."""
    last = _exclusive(g, ids)
    odd = g.op("Mod", g.range(g.count("last_token_ids")), g.int(2))
    full = g.op("Cast", g.op("Greater", g.count("input_ids"), g.int(48)), to=TensorProto.INT64)
    return g.op("Max", g.op("Sub", last, g.op("Mul", odd, full)), g.column(0))


def _reversed(g: Graph, ids: str) -> str:
    n = g.count("last_token_ids")
    return g.op("Gather", _exclusive(g, ids), g.op("Sub", g.op("Sub", n, g.int(1)), g.range(n)))


def _odd_n(wrong: Step) -> Step:
    """Exclusive end, but as `wrong` says where the batch has an odd number of sequences and more than one."""

    def gather(g: Graph, ids: str) -> str:
        n = g.count("last_token_ids")
        odd = g.op("And", g.op("Equal", g.op("Mod", n, g.int(2)), g.int(1)), g.op("Greater", n, g.int(1)))
        return g.op("Where", odd, wrong(g, ids), _exclusive(g, ids))

    return gather


def _drifting(scale: float) -> Step:
    """Adds a little that depends on the place in the pack, as kernels that round differently row by row do."""

    def state(g: Graph, states: str) -> str:
        rows = g.op("Sin", g.op("Cast", g.range(g.count("input_ids")), to=TensorProto.FLOAT))
        drift = g.op("Mul", g.op("Unsqueeze", g.cast(rows), g.ints(1)), g.normal(1, HIDDEN, scale=scale))
        return g.op("Add", states, drift)

    return state


def _leaking(scale: float) -> Step:
    """Adds the pack's mean to every token."""

    def embed(g: Graph, x: str) -> str:
        mean = g.op("ReduceMean", x, axes=[0], keepdims=1)
        return g.op("Add", x, g.op("Mul", mean, g.floats(scale)))

    return embed


def _times(factor: float) -> Step:
    return lambda g, x: g.op("Mul", x, g.floats(factor))


def _constant(g: Graph, out: str) -> str:
    return g.op("Add", g.op("Mul", out, g.floats(0)), g.normal(1, HIDDEN))


def _with_nan(g: Graph, out: str) -> str:
    return g.op("Add", out, g.floats([[np.nan, *[0.0] * (HIDDEN - 1)]]))


def _noisy(g: Graph, out: str) -> str:
    noise = g.op("RandomNormalLike", out, scale=0.1, dtype=TensorProto.FLOAT)
    return g.op("Add", out, g.cast(noise))


def _no_positions(g: Graph) -> str:
    return g.op("Mul", "position_ids", g.op("Cast", g.int(0), to=TensorProto.INT32))


def _packed_positions(g: Graph) -> str:
    return g.range(g.count("input_ids"))


def _right(convention: GatherConvention, decided_by: str = "only-consistent", **how: Any) -> Kind:
    gather = _exclusive if convention is GatherConvention.EXCLUSIVE_END else _inclusive
    return Kind(frozenset({"proved"}), convention, decided_by, gather=gather, **how)


def _wrong(*reasons: str, **how: Any) -> Kind:
    return Kind(frozenset(reasons), **how)


_EXCLUSIVE, _INCLUSIVE = GatherConvention.EXCLUSIVE_END, GatherConvention.INCLUSIVE_END

KINDS: dict[str, Kind] = {
    "exclusive-end": _right(_EXCLUSIVE),
    "inclusive-end": _right(_INCLUSIVE),
    "both-consistent-exclusive": _right(_EXCLUSIVE, "tie-break", state=_drifting(0.02)),
    "both-consistent-inclusive": _right(_INCLUSIVE, "tie-break", state=_drifting(0.02)),
    "equal-embedding-rows": _right(_EXCLUSIVE, equal_rows=0.5),
    "tensorrt-llm-inputs": _right(
        _EXCLUSIVE, inputs=TENSORRT_LLMS, attention="lengths", output=_disturbed_by_wrong_metadata
    ),
    "tie-break-misled": _wrong("wrong-dependence", state=_drifting(20)),
    "all-zero": _wrong("all-zero", output=_times(0)),
    "constant": _wrong("ambiguous", output=_constant),
    "ignores-last-token-ids": _wrong("ambiguous", gather=lambda g, ids: g.column(-1)),
    "first-token": _wrong("ambiguous", gather=lambda g, ids: g.column(0)),
    "ignores-input": _wrong("ignores-input", embed=_times(0)),
    "every-embedding-row-equal": _wrong("ignores-input", equal_rows=1.0),
    "next-sequence": _wrong("wrong-dependence", gather=_beyond),
    "one-before-last": _wrong("ambiguous", gather=_one_before_last),
    "two-before": _wrong("ambiguous", gather=_two_before),
    "one-token-for-all": _wrong("not-consistent", gather=_one_for_all),
    "non-finite": _wrong("non-finite", output=_with_nan),
    "noisy": _wrong("noisy", output=_noisy),
    "bidirectional": _wrong("wrong-dependence", attention="bidirectional"),
    "attends-to-the-whole-pack": _wrong("wrong-dependence", attention="pack"),
    "leaks": _wrong("wrong-dependence", embed=_leaking(0.5)),
    "leaks-a-little": _wrong("wrong-dependence", "inconclusive", embed=_leaking(0.02)),
    "packed-positions": _wrong("wrong-dependence", "depends-on-placement", positions=_packed_positions),
    "reversed-order": _wrong("wrong-dependence", gather=_reversed),
    "odd-sequences-inclusive": _wrong(
        "wrong-dependence",
        gather=_inclusive_where(lambda g, s: g.op("Cast", g.op("Mod", s, g.int(2)), to=TensorProto.BOOL)),
    ),
    "later-sequences-inclusive": _wrong(
        "wrong-dependence", "depends-on-placement", gather=_inclusive_where(lambda g, s: g.op("Greater", s, g.int(7)))
    ),
    "odd-sequences-of-a-full-pack": _wrong("wrong-dependence", gather=_odd_of_a_full_pack),
    "odd-n-reversed": _wrong("wrong-dependence", gather=_odd_n(_reversed)),
    "odd-n-early": _wrong("wrong-dependence", gather=_odd_n(_one_before_last)),
    "window-of-two": _wrong("wrong-dependence", attention="window"),
    "no-positions": _wrong("ignores-order", positions=_no_positions),
    "clipped-index": _wrong("wrong-dependence", gather=_clipped),
    "long-sequences-cut": _wrong("wrong-dependence", gather=_no_further_than_16),
    "limits-too-small": _wrong("limits-too-small", limits=Limits(3, 64, 24)),
    "unknown-tensor": _wrong("unknown-tensor", extra_input="prompt_tasks"),
    "key-value-cache": _wrong("key-value-cache", kv_cache_type="PAGED"),
}
