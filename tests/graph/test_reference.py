"""The default checkpoint gives transformers' token ids and vectors; see fixtures/reference/make_reference.py."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from resources.checkpoint import DEFAULT_CHECKPOINT, TokenizerPolicy, open_checkpoint
from resources.graph import write_packed_graph
from tests.fixtures.reference.texts import AWKWARD, random_texts
from tests.graph.running import Graph, cosines, relative_errors

REFERENCE = Path(__file__).parent.parent / "fixtures" / "reference"


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(DEFAULT_CHECKPOINT)


@pytest.fixture(scope="module")
def record():
    return json.loads((REFERENCE / "reference.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def vectors():
    return load_file(REFERENCE / "reference.safetensors")["vectors"]


@pytest.fixture(scope="module")
def graph(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "packed.onnx"
    write_packed_graph(checkpoint, path)
    return Graph(path)


def test_the_fixture_is_of_these_texts(record):
    assert {text["name"]: text["text"] for text in record["texts"]} == AWKWARD


def test_the_ids_are_those_of_transformers(checkpoint, record):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy())
    encoded = tokenizer.encode(list(AWKWARD.values()))
    assert {n: ids.tolist() for n, ids in zip(AWKWARD, encoded, strict=True)} == {
        text["name"]: text["ids"] for text in record["texts"]
    }


def test_the_ids_of_random_texts_are_those_of_transformers(checkpoint, record):
    encoded = checkpoint.tokenizer(TokenizerPolicy()).encode(random_texts())
    content = json.dumps([ids.tolist() for ids in encoded], separators=(",", ":"))
    assert hashlib.sha256(content.encode()).hexdigest() == record["random_ids_sha256"]


def test_each_vector_is_that_of_transformers_alone_and_in_company(graph, record, vectors):
    ids = [np.array(text["ids"], dtype=np.int32) for text in record["texts"]]
    order = np.random.default_rng(0).permutation(len(ids))
    together = np.empty_like(vectors)
    together[order] = graph([ids[i] for i in order])
    for found in (np.concatenate([graph([i]) for i in ids]), together):
        assert relative_errors(found, vectors).max() <= 1e-4
        assert cosines(found, vectors).min() >= 0.99999


@pytest.mark.peer
def test_transformers_makes_the_same_fixture_again(checkpoint, record, vectors, tmp_path):
    python = os.environ.get("FABRIC_PEER_PYTHON")
    if not python:
        pytest.fail("set FABRIC_PEER_PYTHON to a Python with torch, transformers, accelerate, gguf and safetensors")
    command = [python, REFERENCE / "make_reference.py", checkpoint.path, tmp_path]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    again = json.loads((tmp_path / "reference.json").read_text(encoding="utf-8"))
    assert again["texts"] == record["texts"]
    assert again["random_ids_sha256"] == record["random_ids_sha256"]
    assert relative_errors(load_file(tmp_path / "reference.safetensors")["vectors"], vectors).max() <= 1e-5
