import numpy as np
import pytest

from resources import proof
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.errors import EngineError
from resources.proof.samples import TEXTS, sample_probes
from resources.records import Limits
from tests import zoo
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")))


@pytest.mark.parametrize("policy", [TokenizerPolicy(), TokenizerPolicy(add_bos=True, add_eos=True)])
def test_the_tokens_are_those_of_the_policy_and_spell_the_text(checkpoint, policy):
    tokenizer = checkpoint.tokenizer(policy)
    samples = sample_probes(tokenizer, 273, Limits(64, 2048, 512))
    assert [s.text for s in samples] == list(TEXTS)
    for sample in samples:
        np.testing.assert_array_equal(sample.ids, tokenizer.encode([sample.text])[0])
        assert len(sample.pieces) == len(sample.ids)
        assert not sample.cut
    # Its letters are ASCII, so that each token spells whole characters.
    spelled = "".join(samples[0].pieces)
    assert spelled == (f"<|im_start|>{TEXTS[0]}<|im_end|>" if policy.add_bos else TEXTS[0])


@pytest.mark.parametrize("limits", [Limits(4, 5, 2), Limits(12, 64, 24), Limits(4, 1000, 3)])
def test_a_text_that_does_not_fit_is_cut_so_that_all_fit_one_pack(checkpoint, limits):
    samples = sample_probes(checkpoint.tokenizer(TokenizerPolicy()), 273, limits)
    lengths = [len(s.ids) for s in samples]
    assert min(lengths) >= 1 and max(lengths) <= limits.max_input_len and sum(lengths) < limits.max_num_tokens
    assert all(s.cut for s in samples)


def test_a_token_that_the_engine_lacks_is_named(checkpoint):
    with pytest.raises(EngineError, match=r"gives the id .*; the engine's vocabulary ends at 99"):
        sample_probes(checkpoint.tokenizer(TokenizerPolicy()), 100, Limits(64, 2048, 512))


@pytest.mark.parametrize("kind", ["exclusive-end", "inclusive-end"])
def test_the_gathered_token_is_the_last_one_and_moves_the_vector(tmp_path, kind):
    zoo.write_engine(kind, tmp_path)
    with proof.load(tmp_path, threads=1) as engine:
        check = engine.report.samples
        for probe in check.probes:
            assert probe.gathered == len(probe.tokens) - 1
            assert probe.tokens[probe.gathered].moved > 0.1
            ids = [np.array([t.token_id for t in probe.tokens])]
            assert probe.norm == pytest.approx(np.linalg.norm(engine.extract(ids)), rel=1e-5)
    assert check.n_tokens > zoo.LIMITS.max_num_tokens - zoo.LIMITS.max_input_len


def test_a_vector_that_differs_from_pack_to_pack_is_measured_and_fails_the_contract(tmp_path):
    """Such an engine's convention can be proved; its vectors are too far apart for one table."""
    zoo.write_engine("both-consistent-exclusive", tmp_path)
    with proof.load(tmp_path, threads=1) as engine:
        apart = max(p.apart for p in engine.report.samples.probes)
        first = engine.report.samples.probes[-1]
        assert engine.report.samples.tolerance < apart < 1 / 16
        ids = np.array([t.token_id for t in first.tokens])
        alone, [*_, packed] = engine.extract([ids]), engine.extract([np.array([5, 6, 7]), ids])
        assert np.linalg.norm(alone - packed) > engine.report.samples.tolerance * np.linalg.norm(alone)
