"""The judgement, on runs whose vectors are computed by hand: no engine, exact amounts of movement and noise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resources.checkpoint import load_tokenizer
from resources.proof.convention import detect
from resources.proof.dependence import prove
from resources.proof.layouts import large_layouts, micro_layouts
from resources.proof.subject import Subject
from resources.proof.tokens import Tokens
from resources.proof.vectors import MOVED, NOISE_CEILING, ROUNDING, Vectors
from resources.records import GatherConvention, Limits
from tests import zoo

FLOOR = ROUNDING["float16"]
EXCLUSIVE = GatherConvention.EXCLUSIVE_END


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Tokens:
    directory: Path = tmp_path_factory.mktemp("engine")
    zoo.write_engine("exclusive-end", directory)
    return Tokens(load_tokenizer(directory), vocab_size=273)


class Model:
    """Vectors of unit length whose distance to one another is exactly what each influence says.

    Every token is +1 or -1 by its parity; a vector has one element for each influence on it, which that token signs.
    """

    def __init__(self, *, own=1.0, first=1.0, next_first=0.0, noise=0.0):
        self.own, self.first, self.next_first, self.noise = own, first, next_first, noise
        self.runs = 0

    def __call__(self, batch) -> Vectors:
        self.runs += 1
        last = batch.last_token_ids - 1
        sign = np.where(batch.input_ids % 2, 0.5, -0.5)
        starts = last - batch.position_ids[last]
        following = np.minimum(last + 1, batch.n_tokens - 1)
        values = np.stack(
            [
                np.full(len(last), 1.0),
                self.own * sign[last],
                self.first * sign[starts],
                self.next_first * sign[following],
                np.full(len(last), self.noise * (self.runs % 2)),
            ],
            axis=1,
        )
        return Vectors(values, non_finite=0, denormal=0)


def proved(model, tokens, layout=None, **how):
    layout = layout or micro_layouts()[0]
    subject = Subject(run=model, tokens=tokens, convention=EXCLUSIVE, dtype="float16", seed=1)
    return prove(subject, layout, profile=0, fewest_trials=4, **how)


def test_a_model_that_depends_on_its_own_tokens_holds(tokens):
    evidence = proved(Model(), tokens)
    assert (evidence.reason, evidence.noise_floor) == (None, FLOOR)
    assert all(e.wrong == () and e.moved == e.must_move for e in evidence.experiments)
    b_last = next(e for e in evidence.experiments if e.change == "B's last token")
    for exchange in b_last.exchanges:
        moved = exchange.before % 2 != exchange.after % 2
        assert (exchange.noise_floors[2] > MOVED) == moved


@pytest.mark.parametrize(
    ("influence", "reason"),
    [
        (0.5 * FLOOR, None),
        (5 * FLOOR, "inconclusive"),
        (40 * FLOOR, "wrong-dependence"),
        (1.0, "wrong-dependence"),
    ],
)
def test_a_vector_that_must_stay_is_judged_by_how_far_it_moved(tokens, influence, reason):
    assert proved(Model(next_first=influence), tokens).reason == reason


@pytest.mark.parametrize(
    ("influence", "reason"),
    [(0.0, "unprovable"), (0.5 * FLOOR, "unprovable"), (5 * FLOOR, "inconclusive"), (40 * FLOOR, None)],
)
@pytest.mark.parametrize("which", ["own", "first"])
def test_a_vector_that_must_move_is_judged_by_its_best_trial(tokens, which, influence, reason):
    assert proved(Model(**{which: influence}), tokens).reason == reason


def test_with_pairs_that_are_known_to_move_a_still_vector_is_wrong(tokens):
    crowded = large_layouts(Limits(6, 64, 8))[0]
    assert proved(Model(), tokens, crowded, pairs=[(10, 11), (12, 15)]).reason is None
    assert proved(Model(own=0.0), tokens, crowded, pairs=[(10, 11)]).reason == "wrong-dependence"


def test_noise_raises_the_floor_until_it_is_too_much_to_prove_anything(tokens):
    # Four changes lie between a batch and its repetition, so that the two runs differ in parity, and so in noise.
    layout = micro_layouts()[0]
    even = replace(layout, changes=layout.changes[:4])
    quiet = proved(Model(noise=3 * FLOOR), tokens, even)
    assert quiet.noise_floor > 2 * FLOOR
    assert proved(Model(noise=2 * NOISE_CEILING * FLOOR), tokens, even).reason == "noisy"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (lambda v: v * 0, "all-zero"),
        (lambda v: v * 0 + 1, "ambiguous"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 1, v, np.inf), "non-finite"),
    ],
)
def test_detection_refuses_what_shows_nothing(tokens, values, reason):
    def run(batch):
        seen = values(Model()(batch).values)
        return Vectors(seen, non_finite=int((~np.isfinite(seen)).sum()), denormal=0)

    detection = detect(run, tokens, "float16", seed=1)
    assert (detection.reason, detection.convention) == (reason, None)


def test_detection_tries_other_tokens_when_a_pair_cannot_show_the_convention(tokens):
    # u of the same parity as t makes A's and B's vectors equal.
    detections = [detect(Model(), tokens, "float16", seed=seed) for seed in range(8)]
    assert {(d.convention, d.decided_by) for d in detections} == {("exclusive_end", "only-consistent")}
    assert len({len(d.trials) for d in detections}) > 1
