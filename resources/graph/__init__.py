"""Writes a checkpoint as a packed ONNX graph: the one graph that every backend runs or builds from.

Contract: opset 17 primitives only, deterministic bytes, weights in one external data file beside the graph.
"""

from resources.graph.packed_graph import GRAPH_VERSION, OPSET, Precision, write_packed_graph

__all__ = ["GRAPH_VERSION", "OPSET", "Precision", "write_packed_graph"]
