from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from io_managers.tables import PROBE_SETS, TOKENISED_BATCHES
from resources.checkpoint import open_checkpoint
from resources.checkpoint.tokenizer import Tokenizer, TokenizerPolicy
from resources.records import Limits, Message, Refusal, partition_digest, token_hash, work_item_digest
from resources.work_items import ROWS, TokenisedPartition, cut, tokenise_partition
from tests.tiny import tiny_gguf

LIMITS = Limits(max_batch_size=4, max_num_tokens=64, max_input_len=32)
PART = "set.00003"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")))


@pytest.fixture(scope="module")
def tokenizer(checkpoint) -> Tokenizer:
    return checkpoint.tokenizer(TokenizerPolicy(max_tokens=32))


def probes(
    contents: dict[str, str | list[int] | tuple[Message, ...]], *, batch_rows: int = 100
) -> list[pa.RecordBatch]:
    """Rows of `probe_sets`: a text, token ids or a chat for each id."""
    columns = {str: "text", list: "token_ids", tuple: "messages"}
    records = [
        {"part": PART, "probe_id": name, columns[type(c)]: c, "source_uri": "file:///f.jsonl", "source_row": i}
        for i, (name, c) in enumerate(contents.items())
    ]
    return [
        pa.RecordBatch.from_pylist(records[first : first + batch_rows], schema=PROBE_SETS.schema)
        for first in range(0, len(records), batch_rows)
    ]


def tokenise(
    batches, tokenizer, scratch: Path, *, limits: Limits = LIMITS, probes_digest: bytes = b"p" * 8
) -> TokenisedPartition:
    return tokenise_partition(
        PART,
        batches,
        tokenizer,
        probes_digest=probes_digest,
        limits=limits,
        vocab_size=tokenizer.vocab_size,
        scratch=scratch,
    )


def rows_of(partition: TokenisedPartition) -> list[dict]:
    return pa.Table.from_batches(partition.batches(), ROWS).to_pylist()


def many_texts(n: int, seed: int = 0) -> dict[str, str]:
    generator = random.Random(seed)
    return {f"p{i:04d}": "the " * generator.randint(1, 9) + generator.choice("abc") for i in range(n)}


def test_the_schema_is_the_tables():
    assert TOKENISED_BATCHES.schema == ROWS


def test_every_row_has_its_own_probes_tokens(tokenizer, tmp_path):
    texts = many_texts(300)
    with tokenise(probes(texts), tokenizer, tmp_path) as partition:
        rows = rows_of(partition)
        assert partition.n_rows == len(rows) == 300
    assert {row["probe_id"] for row in rows} == texts.keys()
    for row in rows:
        ids = np.array(row["token_ids"], dtype=np.int32)
        assert np.array_equal(ids, tokenizer.encode([texts[row["probe_id"]]])[0])
        assert (row["part"], row["n_tokens"], row["token_hash"]) == (PART, len(ids), token_hash(ids))
        assert not row["truncated"]


@pytest.mark.parametrize("block_rows", [1, 2, 7, 50, 65_536])
def test_the_manifest_adds_up_to_the_rows_and_keeps_the_limits(tokenizer, tmp_path, monkeypatch, block_rows):
    monkeypatch.setattr(cut, "MAX_BLOCK_ROWS", block_rows)
    with tokenise(probes(many_texts(200)), tokenizer, tmp_path) as partition:
        rows = rows_of(partition)
        assert partition.content_digest == partition_digest(partition.manifest)
    names = [f"{PART}-{i:08d}" for i in range(len(partition.manifest))]
    assert [item.work_item_id for item in partition.manifest] == names
    assert [row["work_item_id"] for row in rows] == sorted(row["work_item_id"] for row in rows)
    for item in partition.manifest:
        mine = [row for row in rows if row["work_item_id"] == item.work_item_id]
        places = [row["sequence_index"] for row in mine]
        sequences = {row["sequence_index"]: tuple(row["token_ids"]) for row in mine}
        assert [row["row_index"] for row in mine] == list(range(item.n_rows))
        assert places == sorted(places) and set(places) == set(range(item.n_sequences))
        assert all(sequences[row["sequence_index"]] == tuple(row["token_ids"]) for row in mine)
        assert len(set(sequences.values())) == item.n_sequences <= LIMITS.max_batch_size
        assert sum(map(len, sequences.values())) == item.n_tokens <= LIMITS.max_num_tokens
        assert max(map(len, sequences.values())) == item.max_tokens
        assert item.n_rows <= block_rows
        assert item.digest == work_item_digest(
            [row["probe_id"] for row in mine],
            [row["token_hash"] for row in mine],
            places,
            [row["truncated"] for row in mine],
        )
        assert (item.tokenizer_id, item.probes_digest) == (tokenizer.tokenizer_id, b"p" * 8)


def test_equal_sequences_are_computed_once(tokenizer, tmp_path):
    texts = many_texts(500)
    with tokenise(probes(texts), tokenizer, tmp_path) as partition:
        assert sum(item.n_sequences for item in partition.manifest) == len(set(texts.values())) < len(texts)


def test_a_sequence_is_computed_again_only_when_it_fills_a_block(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(cut, "MAX_BLOCK_ROWS", 5)
    texts = {f"{letter}{i}": letter for letter, n in (("a", 3), ("b", 4), ("c", 12)) for i in range(n)}
    with tokenise(probes(texts), tokenizer, tmp_path) as partition:
        sequences = sum(item.n_sequences for item in partition.manifest)
    assert sequences == 1 + 1 + 3


def test_a_block_is_bounded_in_tokens_too(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(cut, "MAX_BLOCK_TOKENS", 40)
    with tokenise(probes(many_texts(100)), tokenizer, tmp_path) as partition:
        tokens = [sum(batch.column("n_tokens").to_pylist()) for batch in partition.batches()]
    assert len(tokens) > 10 and max(tokens) <= 40


@pytest.mark.parametrize("batch_rows", [1, 33, 1000])
def test_the_order_and_batches_of_the_probes_do_not_matter(tokenizer, tmp_path, batch_rows):
    texts = many_texts(150)
    shuffled = dict(random.Random(batch_rows).sample(list(texts.items()), len(texts)))
    with (
        tokenise(probes(texts), tokenizer, tmp_path) as one,
        tokenise(probes(shuffled, batch_rows=batch_rows), tokenizer, tmp_path) as other,
    ):
        assert list(one.batches()) == list(other.batches())
        assert one.manifest == other.manifest and one.content_digest == other.content_digest


def test_another_probe_text_tokenizer_or_limit_is_another_digest(checkpoint, tokenizer, tmp_path):
    texts = many_texts(20)
    with_bos = checkpoint.tokenizer(TokenizerPolicy(max_tokens=32, add_bos=True))
    larger = Limits(max_batch_size=8, max_num_tokens=64, max_input_len=32)
    partitions = [
        tokenise(probes(texts), tokenizer, tmp_path),
        tokenise(probes(texts | {"p0000": "another"}), tokenizer, tmp_path),
        tokenise(probes({("q" if n == "p0000" else n): t for n, t in texts.items()}), tokenizer, tmp_path),
        tokenise(probes(texts), with_bos, tmp_path),
        tokenise(probes(texts), tokenizer, tmp_path, limits=larger),
        tokenise(probes(texts), tokenizer, tmp_path, probes_digest=b"q" * 8),
    ]
    assert len({partition.content_digest for partition in partitions}) == len(partitions)


def test_batches_can_be_iterated_again(tokenizer, tmp_path):
    with tokenise(probes(many_texts(50)), tokenizer, tmp_path) as partition:
        assert list(partition.batches()) == list(partition.batches())
        assert all(batch.schema == ROWS for batch in partition.batches())


@pytest.mark.parametrize(
    ("content", "reason", "detail"),
    [
        ("a" * 33, "over-long", "the probe has 33 tokens, more than the tokenizer's policy takes"),
        ([5] * 33, "over-long", "the probe has 33 tokens, more than the tokenizer's policy takes"),
        ("a" * 17, "over-long", "the probe has 17 tokens; a packed batch takes at most 16"),
        ([5, 273], "token-id-out-of-range", "token id 273 is not in 0 .. 272"),
        ([-1, 5], "token-id-out-of-range", "token id -1 is not in 0 .. 272"),
        ([], "no-tokens", "the probe has no token"),
    ],
)
def test_a_probe_without_a_place_in_the_work_is_refused(tokenizer, tmp_path, content, reason, detail):
    limits = Limits(max_batch_size=4, max_num_tokens=16, max_input_len=32)
    batches = probes({"fine": "a", "odd": content, "fine too": [272]})
    with tokenise(batches, tokenizer, tmp_path, limits=limits) as partition:
        assert partition.refusals == (Refusal(PART, "tokenised_batches", "odd", reason, detail, "file:///f.jsonl", 1),)
        assert {row["probe_id"] for row in rows_of(partition)} == {"fine", "fine too"}


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat_checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "tiny.gguf"
    return open_checkpoint(str(tiny_gguf(path, metadata={"tokenizer.chat_template": CHATML})))


def test_chats_texts_and_given_ids_stand_side_by_side(chat_checkpoint, tmp_path):
    tokenizer = chat_checkpoint.tokenizer(TokenizerPolicy(chat="generation_prompt"))
    contents = {
        "chat": (Message("user", "the"), Message("assistant", "")),
        "text": "the",
        "ids": [5, 6],
        "same": (Message("user", "the"),),
        "bad": (Message("user", "the" * 50),),
    }
    with tokenise(probes(contents), tokenizer, tmp_path) as partition:
        rows = {row["probe_id"]: row["token_ids"] for row in rows_of(partition)}
        assert [(r.probe_id, r.reason) for r in partition.refusals] == [("bad", "over-long")]
    assert (
        tokenizer.decode(rows["chat"]) == "<|im_start|>user the<|im_end|><|im_start|>assistant <|im_end|><|im_start|>a"
    )
    assert tokenizer.decode(rows["text"]) == "<|im_start|>user the<|im_end|><|im_start|>a"
    assert (rows["same"], rows["ids"]) == (rows["text"], [5, 6])


def test_a_chat_without_a_chat_policy_is_refused(tokenizer, tmp_path):
    with tokenise(probes({"chat": (Message("user", "a"),), "text": "a"}), tokenizer, tmp_path) as partition:
        [refusal] = partition.refusals
    assert (refusal.probe_id, refusal.reason) == ("chat", "no-chat-template")


def test_a_long_chat_is_tokenised_alone(chat_checkpoint, tmp_path, monkeypatch):
    tokenizer, calls = chat_checkpoint.tokenizer(TokenizerPolicy(chat="turns")), []
    encode = tokenizer.encode_probes
    monkeypatch.setattr(tokenizer, "encode_probes", lambda chats: calls.append(len(chats)) or encode(chats))
    monkeypatch.setattr("resources.work_items.tokenise._BYTES_AT_ONCE", 20)
    chats = {f"c{i}": (Message("user", "ab" * n), Message("user", "ab")) for i, n in enumerate((1, 1, 9, 1, 9))}
    with tokenise(probes(chats | {"ids": [5], "text": "a"}), tokenizer, tmp_path) as partition:
        assert partition.n_rows == 7
    assert calls == [2, 1, 1, 1, 1]


def test_the_last_token_of_a_sequence_is_its_eos_although_that_is_the_padding(checkpoint, tmp_path):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(add_eos=True, max_tokens=4, over_long="truncate_right"))
    eos = tokenizer.vocabulary.eos_id
    assert eos == tokenizer.vocabulary.pad_id
    with tokenise(probes({"short": "ab", "long": "abcdefgh", "spelled": "<|im_end|>a"}), tokenizer, tmp_path) as made:
        rows = {row["probe_id"]: row for row in rows_of(made)}
    assert {name: row["n_tokens"] for name, row in rows.items()} == {"short": 3, "long": 4, "spelled": 3}
    assert all(row["token_ids"][-1] == eos and row["n_tokens"] == len(row["token_ids"]) for row in rows.values())


@pytest.mark.parametrize(("over_long", "kept"), [("truncate_left", slice(-4, None)), ("truncate_right", slice(4))])
def test_a_probe_that_is_cut_says_so(checkpoint, tmp_path, over_long, kept):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(max_tokens=4, over_long=over_long))
    with tokenise(probes({"long": "abcdefgh", "short": "abcd"}), tokenizer, tmp_path) as partition:
        rows = {row["probe_id"]: row for row in rows_of(partition)}
    assert rows["long"]["token_ids"] == tokenizer.encode(["abcdefgh"])[0][kept].tolist()
    assert (rows["long"]["truncated"], rows["short"]["truncated"]) == (True, False)


def test_a_text_that_was_cut_and_one_that_is_what_was_kept_are_different_content(checkpoint, tmp_path):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(max_tokens=4, over_long="truncate_right"))
    cut = tokenise(probes({"p": "abcdefgh"}), tokenizer, tmp_path)
    whole = tokenise(probes({"p": "abcd"}), tokenizer, tmp_path)
    assert rows_of(cut)[0] == rows_of(whole)[0] | {"truncated": True}
    assert cut.content_digest != whole.content_digest


@pytest.mark.parametrize("batches", [[], probes({"odd": [999]})], ids=["no probes", "all refused"])
def test_a_partition_may_be_empty(tokenizer, tmp_path, batches):
    with tokenise(batches, tokenizer, tmp_path) as partition:
        assert (partition.n_rows, partition.manifest, list(partition.batches())) == (0, (), [])


def test_long_texts_are_tokenised_a_few_at_a_time(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("resources.work_items.tokenise._BYTES_AT_ONCE", 20)
    texts = {f"p{i}": "ab" * (i % 16) + "c" for i in range(40)}
    with tokenise(probes(texts), tokenizer, tmp_path) as partition:
        assert {row["probe_id"] for row in rows_of(partition)} == texts.keys()


def test_nothing_is_left_behind(tokenizer, tmp_path):
    def broken():
        yield from probes({"a": "a"})
        raise OSError("the source went away")

    tokenise(probes({"a": "a"}), tokenizer, tmp_path).close()
    with pytest.raises(OSError, match="went away"):
        tokenise(broken(), tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []
