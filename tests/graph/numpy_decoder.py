"""A llama decoder in plain numpy and float64, one sequence at a time: what the packed graph must equal."""

from __future__ import annotations

import numpy as np

from resources.checkpoint import Checkpoint


def last_hidden_states(checkpoint: Checkpoint, ids: np.ndarray) -> np.ndarray:
    """float64 [length, hidden]: the states after the final norm."""
    c = checkpoint.config
    length, size, groups = len(ids), c.attention.head_dim, c.attention.groups
    angles = np.outer(np.arange(length), 10000.0 ** (-2.0 * np.arange(size // 2) / size))
    turn = np.exp(1j * angles)[:, None, :]

    def weight(name: str) -> np.ndarray:
        return checkpoint.tensor(f"{name}.weight").astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c.residual.norm.epsilon) * weight(name)

    def rotated(x: np.ndarray) -> np.ndarray:
        # A head's halves are the real and imaginary parts of size/2 numbers, each turned by its own angle.
        turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    x = weight("embed_tokens")[ids]
    for i in range(c.num_hidden_layers):
        layer = f"layers.{i}"
        h = norm(x, f"{layer}.attention_norm")
        q, k, v = (
            (h @ weight(f"{layer}.attention.{p}").T).reshape(length, heads, size)
            for p, heads in (("q", c.num_attention_heads), ("k", groups), ("v", groups))
        )
        q, k = rotated(q), rotated(k)
        heads = []
        for head in range(c.num_attention_heads):
            group = head * groups // c.num_attention_heads
            scores = q[:, head] @ k[:, group].T / np.sqrt(size)
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, group])
        x = x + np.concatenate(heads, axis=-1) @ weight(f"{layer}.attention.o").T
        h = norm(x, f"{layer}.mlp_norm")
        gate = h @ weight(f"{layer}.mlp.gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight(f"{layer}.mlp.up").T)) @ weight(f"{layer}.mlp.down").T
    return norm(x, "final_norm")
