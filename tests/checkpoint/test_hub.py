"""The hub is asked only for what the cache lacks, and only for files that are safe to read."""

import hashlib
import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

from resources.checkpoint.hub import HubId, fetch, parse_hub_id
from resources.checkpoint.safetensors_folder import SafetensorsFolder
from resources.errors import CheckpointError
from tests.checkpoint.test_safetensors_folder import write

COMMIT = "1f" * 20


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as a download of one repository, owner/tiny at main, takes."""

    def __init__(self, *arguments, files, asked):
        self.files = files
        self.asked = asked
        super().__init__(*arguments)

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/owner/gated"):
            self.answer(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif not path.startswith(("/api/models/owner/tiny/", "/owner/tiny/")):
            self.answer(404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})
        elif path == "/api/models/owner/tiny/revision/main":
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(200, {"id": "owner/tiny", "sha": COMMIT, "siblings": siblings})
        elif path == f"/api/models/owner/tiny/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            self.answer(200, entries)
        elif path.startswith(f"/owner/tiny/resolve/{COMMIT}/"):
            content = self.files[path.rpartition("/")[2]]
            self.answer(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(404, {"error": "none"}, {"X-Error-Code": "RevisionNotFound"})

    do_HEAD = do_GET

    def answer(self, status, content, headers=()):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def point_at(endpoint, monkeypatch):
    """HF_ENDPOINT is read once a process, when the library is imported; this is what it sets."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """(files of the repository, paths asked for, the cache) of a hub on this machine."""
    folder = write(tmp_path / "original", sharded=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"a pickle", "README.md": b"a model", "modeling_tiny.py": b"import os"}
    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, files=files, asked=asked))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    point_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield files, asked, tmp_path / "cache"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("spec", "expected"), [
    ("owner/name", HubId("owner/name")),
    ("Qwen/Qwen2.5-0.5B", HubId("Qwen/Qwen2.5-0.5B")),
    ("owner/name@v1.0", HubId("owner/name", "v1.0")),
    (f"owner/name@{COMMIT}", HubId("owner/name", COMMIT)),
    ("owner/name@refs/pr/3", HubId("owner/name", "refs/pr/3")),
    ("name", None), ("", None), ("owner/name@", None), ("a/b/c", None), ("./name", None), ("../name", None),
    ("/owner/name", None), ("owner/../name", None), ("owner/..", None), ("owner/na me", None), ("~/name", None),
])  # fmt: skip
def test_an_id_is_an_owner_and_a_name(spec, expected):
    assert parse_hub_id(spec) == expected


def test_a_model_is_fetched_once_and_without_what_could_be_run(hub):
    files, asked, _ = hub
    folder = fetch(HubId("owner/tiny"))
    wanted = set(files) - {"pytorch_model.bin", "README.md", "modeling_tiny.py"}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: files[name] for name in wanted}
    asked.clear()
    assert fetch(HubId("owner/tiny")) == fetch(HubId("owner/tiny", COMMIT)) == folder
    assert asked == []


def test_an_adapter_beside_a_model_is_fetched_too_and_so_refused(hub):
    files, _, _ = hub
    files["adapter_config.json"] = b"{}"
    with pytest.raises(CheckpointError, match="holds an adapter"):
        SafetensorsFolder(fetch(HubId("owner/tiny")))


@pytest.mark.parametrize("lost", ["config.json", "tokenizer_config.json", "model-00002-of-00002.safetensors"])
def test_what_the_cache_lacks_is_fetched_again(hub, lost):
    files, _, _ = hub
    folder = fetch(HubId("owner/tiny"))
    (folder / lost).unlink()
    assert (fetch(HubId("owner/tiny")) / lost).read_bytes() == files[lost]


@pytest.mark.parametrize(("spec", "sentence"), [
    ("owner/other", r"'owner/other' is neither a folder here nor a model on the hub that you may read"),
    ("owner/gated", r"owner/gated is gated: accept its terms"),
    ("owner/tiny@v9", r"owner/tiny has no revision 'v9'"),
])  # fmt: skip
def test_what_the_hub_does_not_give_is_named(hub, spec, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        fetch(parse_hub_id(spec))


def test_a_model_without_safetensors_is_refused_with_the_command_that_converts_it(hub):
    files, asked, _ = hub
    for name in [name for name in files if name.startswith("model")]:
        del files[name]
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors .* M\.from_pretrained\('owner/tiny'\)"):
        fetch(HubId("owner/tiny"))
    assert not any(path.endswith("pytorch_model.bin") for path in asked)


@pytest.mark.parametrize("way", ["no server", "offline"])
def test_without_a_network_a_model_that_is_not_cached_is_refused_with_the_way_out(hub, monkeypatch, way):
    if way == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    else:
        point_at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(
        CheckpointError, match=r"owner/tiny is not whole in the local hub cache .*hf download owner/tiny"
    ):
        fetch(HubId("owner/tiny"))
