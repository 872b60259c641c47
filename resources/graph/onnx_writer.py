"""An ONNX graph under construction, its weights streamed to an external data file.

Contract: a weight is written to the data file when it is added and not kept; names are the caller's and unique; the
same calls give the same bytes. For little-endian machines, as every one is that runs an engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from resources.errors import CheckpointError

ALIGNMENT = 4096
"""Offsets in the data file are multiples of it, so that a runtime can map a weight instead of copying it."""


class OnnxWriter:
    """Nodes, constants and weights of one graph. A value is its name, a string."""

    def __init__(self, path: Path, *, precision: np.dtype) -> None:
        self.precision = precision
        self._path = path
        self._data_name = f"{path.name}.data"
        # A graph file never stands beside weights that are not its own: it goes first and comes last.
        path.unlink(missing_ok=True)
        self._data = (path.parent / self._data_name).open("wb")
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}

    def __enter__(self) -> OnnxWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._data.close()

    def op(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Adds one node with one output, both called `name`."""
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def split(self, name: str, value: str, outputs: dict[str, int]) -> tuple[str, ...]:
        """Cuts the last axis of `value` into parts named `name`/part, of the sizes given."""
        names = tuple(f"{name}/{part}" for part in outputs)
        sizes = self.integers(*outputs.values())
        self._nodes.append(helper.make_node("Split", [value, sizes], names, name=f"{name}/split", axis=-1))
        return names

    def weight(self, name: str, array: np.ndarray, *, wide: bool = False) -> str:
        """A weight in the graph's precision (`wide`: in float32), written to the data file now.

        One that overflows it is an error.
        """
        return self._weight(name, [array], np.dtype(np.float32) if wide else self.precision)

    def weight_in_pieces(self, name: str, pieces: Iterable[np.ndarray]) -> str:
        """As `weight`, of an array that comes cut between rows, a piece at a time."""
        return self._weight(name, pieces, self.precision)

    def constant(self, name: str, array: np.ndarray) -> str:
        """A small constant, kept inside the graph file; asked for again, it is shared."""
        tensor = TensorProto(
            name=name, data_type=_element_type(array.dtype), dims=array.shape, raw_data=array.tobytes()
        )
        if self._initializers.get(name) == tensor:
            return name
        return self._add(tensor)

    def integers(self, *values: int) -> str:
        """A constant int64 vector, as shapes, axes and sizes are given."""
        return self.constant(f"int64[{','.join(map(str, values))}]", np.array(values, dtype=np.int64))

    def save(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], *, opset: int
    ) -> None:
        """Writes the graph file; nothing may be added afterwards."""
        self._data.close()
        graph = helper.make_graph(self._nodes, name, inputs, outputs, initializer=list(self._initializers.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name=name)
        # The oldest IR version that has this opset, so that older runtimes load the file.
        model.ir_version = 8
        self._path.write_bytes(model.SerializeToString(deterministic=True))

    def _weight(self, name: str, pieces: Iterable[np.ndarray], precision: np.dtype) -> str:
        self._data.write(b"\0" * (-self._data.tell() % ALIGNMENT))
        offset, rows, columns = self._data.tell(), 0, ()
        for piece in pieces:
            with np.errstate(over="ignore"):
                array = np.ascontiguousarray(piece, dtype=precision)
            if not np.isfinite(array).all():
                other = "" if precision == np.float32 else "use float32, or "
                raise CheckpointError(f"{name} is not finite in {precision}; {other}fetch a sound checkpoint")
            # As bytes: bfloat16 is not numpy's own and has no buffer.
            self._data.write(array.reshape(-1).view(np.uint8).data)
            rows, columns = rows + len(array), array.shape[1:]
        tensor = TensorProto(name=name, data_type=_element_type(precision), dims=(rows, *columns))
        tensor.data_location = TensorProto.EXTERNAL
        length = self._data.tell() - offset
        for key, value in (("location", self._data_name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return self._add(tensor)

    def _add(self, tensor: TensorProto) -> str:
        if tensor.name in self._initializers:
            raise ValueError(f"the graph has two initializers named {tensor.name!r}")
        self._initializers[tensor.name] = tensor
        return tensor.name


def _element_type(dtype: np.dtype) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))
