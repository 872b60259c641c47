import numpy as np
import pytest

from resources.engine.bindings import Binding, Role, TensorInfo
from resources.engine.buffers import ALIGNMENT, HostBuffers
from resources.errors import EngineError


def binding(name: str, dtype: str, *maximum: int) -> Binding:
    return Binding(TensorInfo(name, dtype, (-1,) * len(maximum), is_input=True), Role.PACKED, maximum, values=None)


@pytest.mark.parametrize(
    ("dtype", "size"), [("int32", 4), ("int64", 8), ("float16", 2), ("bfloat16", 2), ("float32", 4)]
)
def test_a_buffer_is_aligned_and_every_shape_is_a_view_of_it(dtype, size):
    buffers = HostBuffers([binding("a", dtype, 7, 5), binding("b", dtype, 3)])
    small, large = buffers.view("a", (2, 3)), buffers.view("a", (7, 5))
    assert buffers.address("a") % ALIGNMENT == buffers.address("b") % ALIGNMENT == 0
    assert small.ctypes.data == large.ctypes.data == buffers.address("a")
    assert large.nbytes == 35 * size
    small[...] = 1
    assert large.ravel()[:6].tolist() == [1] * 6
    assert not large.ravel()[6:].any()


def test_a_shape_beyond_the_maximum_has_no_view():
    with pytest.raises(ValueError, match="reshape"):
        HostBuffers([binding("a", "int32", 4)]).view("a", (5,))


def test_a_tensor_too_large_for_memory_is_named():
    with pytest.raises(EngineError, match=r"tensor b .* smaller limits"):
        HostBuffers([binding("a", "int32", 4), binding("b", "float32", 1 << 30, 1 << 30)])


def test_an_empty_binding_list_holds_nothing():
    with pytest.raises(KeyError):
        HostBuffers([]).view("a", (1,))


def test_bfloat16_is_kept_as_bits():
    assert HostBuffers([binding("a", "bfloat16", 4)]).view("a", (4,)).dtype == np.uint16
