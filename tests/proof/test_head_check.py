import numpy as np
import pytest

from resources import proof
from resources.checkpoint import Checkpoint, TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.errors import EngineError, EngineRefused
from resources.records import Limits
from tests.tiny import tiny_gguf

LIMITS = Limits(8, 128, 64)


def engine_of(checkpoint, folder, **how):
    return (
        folder
        / build_engine(
            checkpoint, checkpoint.tokenizer(TokenizerPolicy(max_tokens=64)), folder, limits=LIMITS, **how
        ).directory
    )


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_head_says_of_the_engines_vectors_what_it_says_of_the_references(tmp_path, precision):
    head = np.random.default_rng(3).standard_normal((273, 64)).astype(np.float32)
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf", tensors={"output.weight": head})))
    with proof.load(engine_of(checkpoint, tmp_path, precision=precision), checkpoint=checkpoint, threads=1) as engine:
        check = engine.report.head
        assert (check.checkpoint_digest, check.reason) == (checkpoint.digest, None)
        for sample, probe in zip(check.samples, engine.report.samples.probes, strict=True):
            [vector] = engine.extract([np.array([t.token_id for t in probe.tokens])]).astype(np.float64)
            logits = head.astype(np.float64) @ vector
            first = sample.next_tokens[0]
            assert first.engine == pytest.approx(logits[first.token_id], rel=1e-5)
            assert sample.engine_top == first.token_id == logits.argmax()
            assert [t.reference for t in sample.next_tokens] == sorted(
                (t.reference for t in sample.next_tokens), reverse=True
            )
            assert sample.distance <= {"float32": 1e-5, "float16": 5e-3}[precision]


def test_without_a_checkpoint_nothing_is_claimed(tmp_path):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf")))
    with proof.load(engine_of(checkpoint, tmp_path), threads=1) as engine:
        assert engine.report.head is None


def test_another_checkpoint_than_the_engines_is_named(tmp_path):
    checkpoint, other = (open_checkpoint(str(tiny_gguf(tmp_path / f"{i}.gguf", seed=i))) for i in range(2))
    with pytest.raises(EngineError, match=f"built from checkpoint {checkpoint.digest}; 1 is {other.digest}"):
        proof.load(engine_of(checkpoint, tmp_path), checkpoint=other, threads=1)


class Miswritten(Checkpoint):
    """A checkpoint of which whoever writes the graph gets one norm wrong."""

    def tensor(self, name):
        weight = super().tensor(name)
        return weight * 1.5 if name == "layers.1.mlp_norm.weight" else weight


def test_a_graph_that_is_not_the_checkpoints_is_refused_however_well_it_gathers(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf")))
    with monkeypatch.context() as wrong:
        wrong.setattr(checkpoint, "__class__", Miswritten)
        directory = engine_of(checkpoint, tmp_path)
    with proof.load(directory, threads=1) as engine:
        assert engine.report.verdict == "proved"
    with pytest.raises(EngineRefused, match=r"not-the-checkpoint.*float64 forward pass") as caught:
        proof.load(directory, checkpoint=checkpoint, threads=1)
    assert caught.value.report.head.samples[0].distance > caught.value.report.head.tolerance
    assert (caught.value.report.verdict, caught.value.report.convention) == ("refused", None)
