import numpy as np
import pytest

from resources.engine.cuda_memory import COUNTS, CudaMemory, Device, describe_device, memory_info
from resources.errors import EngineError
from tests.engine.stand_in import StandIn


@pytest.fixture
def stand_in(monkeypatch):
    return StandIn().install(monkeypatch)


def test_what_goes_in_comes_out(stand_in):
    memory = CudaMemory()
    memory.allocate_device("a", 64)
    memory.allocate_pinned("a", 64)
    view = memory.pinned_view("a", (2, 3), np.dtype(np.float16))
    view[...] = [[1, 2, 3], [4, 5, 6]]
    memory.copy_in("a", view.nbytes)
    view[...] = 0
    memory.copy_out("a", view.nbytes)
    memory.wait()
    assert view.tolist() == [[1, 2, 3], [4, 5, 6]]
    memory.close()


def test_pinned_memory_starts_as_zeros_and_a_shape_beyond_it_has_no_view(stand_in):
    memory = CudaMemory()
    memory.allocate_pinned("a", 8)
    assert memory.pinned_view("a", (2,), np.dtype(np.int32)).tolist() == [0, 0]
    with pytest.raises(ValueError, match="reshape"):
        memory.pinned_view("a", (3,), np.dtype(np.int32))
    memory.close()


def test_every_allocation_is_counted_and_freed_once(stand_in):
    calls, live = COUNTS.allocating_calls, COUNTS.live
    memory = CudaMemory()
    memory.allocate_device("a", 8)
    memory.allocate_pinned("a", 8)
    memory.allocate_pinned("b", 8)
    assert (COUNTS.allocating_calls - calls, COUNTS.live - live) == (3, 3)
    memory.close()
    memory.close()
    assert (COUNTS.allocating_calls - calls, COUNTS.live - live, stand_in.memory) == (3, 0, {})
    assert stand_in.names().count("cudaStreamDestroy") == 1


def test_an_allocation_that_fails_counts_nothing_and_says_what_is_free(stand_in):
    calls, live = COUNTS.allocating_calls, COUNTS.live
    memory = CudaMemory()
    stand_in.fail["cudaMalloc"] = 2
    with pytest.raises(
        EngineError, match=r"tensor a .*9 bytes .*1,073,741,824 of the device's 2,147,483,648 bytes are"
    ):
        memory.allocate_device("a", 9)
    stand_in.fail["cudaMemGetInfo"] = 2
    with pytest.raises(
        EngineError, match=r"tensor a .*9 bytes .*out of memory.*; build the engine with smaller limits"
    ):
        memory.allocate_device("a", 9)
    assert (COUNTS.allocating_calls, COUNTS.live) == (calls, live)
    memory.close()


@pytest.mark.parametrize("fails", ["cudaStreamSynchronize", "cudaStreamDestroy", "cudaSetDevice", "cudaFree"])
def test_closing_goes_on_whatever_fails_on_the_way(stand_in, fails):
    memory = CudaMemory()
    memory.allocate_device("a", 8)
    memory.allocate_device("b", 8)
    memory.allocate_pinned("a", 8)
    stand_in.fail[fails] = 700
    memory.close()
    assert stand_in.names().count("cudaFree") == 2
    assert stand_in.names().count("cudaFreeHost") == 1


def test_a_device_describes_itself(stand_in):
    assert describe_device() == Device("Stand-in GPU", "9.0")
    assert memory_info().free == 1 << 30
