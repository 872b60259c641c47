"""What the engines of the zoo are: each kind, how it is made, and what the proof must say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from resources.records import GatherConvention, Limits
from tests.zoo_graph import HIDDEN, Graph, Step

LIMITS = Limits(max_batch_size=12, max_num_tokens=64, max_input_len=24)

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


def exclusive(g: Graph, ids: str) -> str:
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
    last_but_one = g.op("Gather", exclusive(g, ids), g.int(-2))
    return g.op("Expand", last_but_one, g.op("Shape", ids))


def _clipped(g: Graph, ids: str) -> str:
    return g.op("Min", exclusive(g, ids), g.int(31))


def _no_further_than_16(g: Graph, ids: str) -> str:
    return g.op("Min", exclusive(g, ids), g.op("Add", g.column(0), g.int(16)))


def _inclusive_where(condition: Callable[[Graph, str], str]) -> Step:
    """Inclusive end for the sequences (an int64 range [n]) that `condition` picks, exclusive end for the others."""

    def gather(g: Graph, ids: str) -> str:
        sequences = g.range(g.count("last_token_ids"))
        return g.op("Where", condition(g, sequences), _clamped(g, ids), exclusive(g, ids))

    return gather


def _odd_of_a_full_pack(g: Graph, ids: str) -> str:
    """One token early for odd sequences, in packs of more tokens than any but a full one has."""
    last = exclusive(g, ids)
    odd = g.op("Mod", g.range(g.count("last_token_ids")), g.int(2))
    full = g.op("Cast", g.op("Greater", g.count("input_ids"), g.int(48)), to=TensorProto.INT64)
    return g.op("Max", g.op("Sub", last, g.op("Mul", odd, full)), g.column(0))


def _reversed(g: Graph, ids: str) -> str:
    n = g.count("last_token_ids")
    return g.op("Gather", exclusive(g, ids), g.op("Sub", g.op("Sub", n, g.int(1)), g.range(n)))


def _odd_n(wrong: Step) -> Step:
    """Exclusive end, but as `wrong` says where the batch has an odd number of sequences and more than one."""

    def gather(g: Graph, ids: str) -> str:
        n = g.count("last_token_ids")
        odd = g.op("And", g.op("Equal", g.op("Mod", n, g.int(2)), g.int(1)), g.op("Greater", n, g.int(1)))
        return g.op("Where", odd, wrong(g, ids), exclusive(g, ids))

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


def _no_positions(g: Graph) -> str:
    return g.op("Mul", "position_ids", g.op("Cast", g.int(0), to=TensorProto.INT32))


def _packed_positions(g: Graph) -> str:
    return g.range(g.count("input_ids"))


def _right(convention: GatherConvention, decided_by: str = "only-consistent", **how: Any) -> Kind:
    gather = exclusive if convention is GatherConvention.EXCLUSIVE_END else _inclusive
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
