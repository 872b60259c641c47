"""A decoder from its configuration: the embedding, the layers in order, the final norm, over packed tokens."""

from __future__ import annotations

from resources.checkpoint import Checkpoint
from resources.graph.attention import Packing, attention, packing
from resources.graph.onnx_writer import OnnxWriter
from resources.graph.pieces import linear, mlp, multiplied, norm, scalar


def write_decoder(w: OnnxWriter, checkpoint: Checkpoint) -> str:
    """The wanted token's state of each sequence, after the final norm: [n, hidden] in the graph's precision."""
    batch = packing(w, checkpoint.config)
    x = _embedding(w, checkpoint)
    for index in range(checkpoint.config.num_hidden_layers):
        x = _layer(w, index, x, batch, checkpoint)
    return norm(w, "final_norm", x, checkpoint, checkpoint.config.residual.norm)


def _embedding(w: OnnxWriter, checkpoint: Checkpoint) -> str:
    """[T, hidden] from `input_ids`."""
    c = checkpoint.config.embedding
    table = w.weight_in_pieces("embed_tokens.weight", checkpoint.pieces("embed_tokens.weight"))
    x = w.op("Gather", "embed_tokens", table, "input_ids")
    if c.multiplier != 1:
        x = w.op("Mul", "embed_tokens/multiplied", x, scalar(w, c.multiplier))
    if c.learned_positions:
        table = w.weight("embed_positions.weight", checkpoint.tensor("embed_positions.weight"))
        x = w.op("Add", "embedded", x, w.op("Gather", "embed_positions", table, "position_ids"))
    return x


def _layer(w: OnnxWriter, index: int, x: str, batch: Packing, checkpoint: Checkpoint) -> str:
    """[T, hidden] -> [T, hidden]; the last layer gives the wanted tokens only, [n, hidden]."""
    config = checkpoint.config
    c, layer = config.residual, f"layers.{index}"

    def normed(name: str, state: str, wanted: bool) -> str:
        return norm(w, f"{layer}.{name}", state, checkpoint, c.norm) if wanted else state

    attended = attention(
        w,
        f"{layer}.attention",
        normed("attention_norm", x, c.before),
        batch,
        checkpoint,
        config.layers[index],
    )
    if index == config.num_hidden_layers - 1:
        # Nothing after the last attention mixes tokens, so only the wanted ones go on.
        attended = w.op("Gather", f"{layer}.attention/wanted", attended, batch.last_index)
        x = w.op("Gather", f"{layer}/wanted", x, batch.last_index)
    projected = linear(w, f"{layer}.attention.o", attended, checkpoint, bias=config.attention.output_bias)
    projected = normed("attention_output_norm", projected, c.after)
    sum_ = w.op("Add", f"{layer}/attended", x, multiplied(w, f"{layer}.attention/multiplied", projected, c.multiplier))

    made = mlp(w, f"{layer}.mlp", normed("mlp_norm", x if c.parallel else sum_, c.before), checkpoint)
    made = normed("mlp_output_norm", made, c.after)
    return w.op("Add", f"{layer}/output", sum_, multiplied(w, f"{layer}.mlp/multiplied", made, c.multiplier))
