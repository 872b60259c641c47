"""Each quantisation of GGUF, against ggml's formula for it written out element by element.

The formulas are those of ggml-quants.c (dequantize_row_*, https://github.com/ggml-org/ggml); blocks are random bytes,
so that every bit of them counts.
"""

import struct

import gguf
import numpy as np
import pytest

from resources.checkpoint import gguf_file
from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError

KIND = gguf.GGMLQuantizationType

ROWS, BLOCKS = 3, 2


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def f16(block, i):
    return half(block, 2 * i)


def bf16(block, i):
    return struct.unpack("<f", b"\0\0" + block[2 * i : 2 * i + 2])[0]


def nibble(packed, i):
    """Of 32 elements in 16 bytes: the first 16 are the low halves."""
    return packed[i % 16] >> (4 * (i // 16)) & 15


def q4_0(block, i):
    return half(block, 0) * (nibble(block[2:], i) - 8)


def q4_1(block, i):
    return half(block, 0) * nibble(block[4:], i) + half(block, 2)


def q5_0(block, i):
    high = int.from_bytes(block[2:6], "little") >> i & 1
    return half(block, 0) * ((nibble(block[6:], i) | high << 4) - 16)


def q5_1(block, i):
    high = int.from_bytes(block[4:8], "little") >> i & 1
    return half(block, 0) * (nibble(block[8:], i) | high << 4) + half(block, 2)


def q8_0(block, i):
    return half(block, 0) * struct.unpack_from("b", block, 2 + i)[0]


def two_bits(packed, i):
    """Of 256 elements in 64 bytes: each 32 bytes hold 128 elements, the first 32 of them in the lowest bits."""
    return packed[i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3


def q2_k(block, i):
    scale = block[i // 16]
    return half(block, 80) * (scale & 15) * two_bits(block[16:80], i) - half(block, 82) * (scale >> 4)


def q3_k(block, i):
    group, packed = i // 16, block[96:108]
    low = packed[group % 8] >> (4 * (group // 8)) & 15
    scale = low | (packed[8 + group % 4] >> (2 * (group // 4)) & 3) << 4
    high = block[i % 32] >> (i // 32) & 1
    return half(block, 108) * (scale - 32) * (two_bits(block[32:96], i) - (0 if high else 4))


def scale_and_minimum(packed, group):
    """Six bits each, of eight groups in twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    return (
        packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
        packed[group + 4] >> 4 | packed[group] >> 6 << 4,
    )


def q4_k(block, i):
    group = i // 32
    scale, minimum = scale_and_minimum(block[4:16], group)
    low = block[16 + group // 2 * 32 + i % 32] >> (4 * (group % 2)) & 15
    return half(block, 0) * scale * low - half(block, 2) * minimum


def q5_k(block, i):
    group = i // 32
    scale, minimum = scale_and_minimum(block[4:16], group)
    low = block[48 + group // 2 * 32 + i % 32] >> (4 * (group % 2)) & 15
    high = block[16 + i % 32] >> group & 1
    return half(block, 0) * scale * (low | high << 4) - half(block, 2) * minimum


def q6_k(block, i):
    part, inside = i // 128, i % 128
    low = block[part * 64 + inside % 64] >> (4 * (inside // 64)) & 15
    high = block[128 + part * 32 + inside % 32] >> (2 * (inside // 32)) & 3
    scale = struct.unpack_from("b", block, 192 + i // 16)[0]
    return half(block, 208) * scale * ((low | high << 4) - 32)


FORMULAS = {
    KIND.F16: (f16, (0,)),
    KIND.BF16: (bf16, ()),
    KIND.Q4_0: (q4_0, (0,)),
    KIND.Q4_1: (q4_1, (0, 2)),
    KIND.Q5_0: (q5_0, (0,)),
    KIND.Q5_1: (q5_1, (0, 2)),
    KIND.Q8_0: (q8_0, (0,)),
    KIND.Q2_K: (q2_k, (80, 82)),
    KIND.Q3_K: (q3_k, (108,)),
    KIND.Q4_K: (q4_k, (0, 2)),
    KIND.Q5_K: (q5_k, (0, 2)),
    KIND.Q6_K: (q6_k, (208,)),
}
"""The value of element i of a block, and where in the block float16 numbers stand."""


def stored(path, data, kind):
    """A file with one tensor, 't', whose bytes are `data`, uint8 [rows, bytes]."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.mark.parametrize("kind", FORMULAS, ids=lambda kind: kind.name)
def test_every_element_is_what_the_formula_says(tmp_path, monkeypatch, kind):
    formula, halves = FORMULAS[kind]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(int(kind))
    blocks = random.integers(0, 256, (ROWS, BLOCKS, size), dtype=np.uint8)
    if kind is KIND.BF16:
        blocks = (
            random.standard_normal((ROWS, BLOCKS)).astype(np.float32).view(np.uint8).reshape(ROWS, BLOCKS, 4)[..., 2:]
        )
    for at in halves:
        numbers = random.standard_normal((ROWS, BLOCKS)).astype("<f2")
        blocks[:, :, at : at + 2] = numbers.view(np.uint8).reshape(ROWS, BLOCKS, 2)
    file = stored(tmp_path / "one.gguf", np.ascontiguousarray(blocks).reshape(ROWS, -1), kind)
    expected = [[formula(block.tobytes(), i) for block in row for i in range(elements)] for row in blocks]
    read = file.tensor("t")
    assert (read.dtype, read.shape, file.shapes) == (np.float32, (ROWS, BLOCKS * elements), {"t": read.shape})
    np.testing.assert_allclose(read, np.array(expected), rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(gguf_file, "PIECE", read.shape[1] * 2)
    pieces = list(file.pieces("t"))
    assert [len(piece) for piece in pieces] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(pieces), read)


def test_float32_is_kept_bit_for_bit(tmp_path):
    weight = np.random.default_rng(0).standard_normal((ROWS, 7)).astype(np.float32)
    np.testing.assert_array_equal(stored(tmp_path / "one.gguf", weight, KIND.F32).tensor("t"), weight)


@pytest.mark.parametrize("kind", [KIND.Q4_0, KIND.Q4_1, KIND.Q5_0, KIND.Q5_1, KIND.Q8_0], ids=lambda kind: kind.name)
def test_a_weight_comes_back_within_a_step_of_its_quantisation(tmp_path, kind):
    weight = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    read = stored(tmp_path / "one.gguf", gguf.quantize(weight, kind), kind).tensor("t")
    steps = {KIND.Q4_0: 8, KIND.Q4_1: 15, KIND.Q5_0: 16, KIND.Q5_1: 31, KIND.Q8_0: 127}[kind]
    blocks = weight.reshape(6, 2, 32)
    width = np.ptp(blocks, axis=-1) if kind in (KIND.Q4_1, KIND.Q5_1) else np.abs(blocks).max(-1)
    assert (np.abs(read - weight).reshape(6, 2, 32).max(-1) <= 1.01 * width / steps).all()


def test_a_tensor_of_a_kind_that_is_no_number_of_weights_is_refused(tmp_path):
    file = stored(tmp_path / "one.gguf", np.arange(6, dtype=np.int64).reshape(2, 3), KIND.I64)
    with pytest.raises(CheckpointError, match=r"'t' .* is stored as I64, which cannot be dequantised here"):
        file.tensor("t")
