"""The hub: against a small server that answers as the hub does, one that refuses, one that never answers, and none."""

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from manyheads.checkpoints import hub
from manyheads.errors import BackendError, CheckpointError

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
errors = pytest.importorskip("huggingface_hub.errors")
hf_api = pytest.importorskip("huggingface_hub.hf_api")

CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64}).encode()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def safetensors(**tensors):
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(position)


# Heavier than the 100 kB that the client asks for first, so that a download of the weights would show.
WEIGHTS = safetensors(w=("F32", [512, 256], 524_288), b=("BF16", [8], 16))
PARTS = {
    "model-00001-of-00002.safetensors": safetensors(a=("F32", [2], 8)),
    "model-00002-of-00002.safetensors": safetensors(b=("F32", [3], 12)),
}
INDEX = json.dumps(
    {"metadata": {"total_size": 20}, "weight_map": {"a": next(iter(PARTS)), "b": list(PARTS)[1]}}
).encode()

FILES = {
    "org/tiny": {"config.json": CONFIG, "model.safetensors": WEIGHTS},
    "org/parts": {"config.json": CONFIG, "model.safetensors.index.json": INDEX, **PARTS},
    "org/wrong": {"config.json": CONFIG, "model.safetensors": safetensors(w=("F32", [3], 8))},
    "org/doubled": {"config.json": CONFIG, "model.safetensors.index.json": INDEX, **dict.fromkeys(PARTS, WEIGHTS)},
    "org/bare": {"config.json": CONFIG},
    "org/empty": {},
}
REFUSALS = {"org/gated": (403, "GatedRepo"), "org/private": (401, "RepoNotFound"), "org/absent": (404, "RepoNotFound"),
            "org/broken": (503, None)}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    """GET and HEAD of /org/name/resolve/revision/file, with the headers that the client reads."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        org, name, _, revision, file = self.path.strip("/").split("?")[0].split("/", 4)
        self.server.asked.append((self.command, f"{org}/{name}", file))
        if f"{org}/{name}" in REFUSALS:
            return self.reply(*REFUSALS[f"{org}/{name}"])
        if revision not in ("main", "v1", COMMIT):
            return self.reply(404, "RevisionNotFound")
        body = FILES[f"{org}/{name}"].get(file)
        if body is None:
            return self.reply(404, "EntryNotFound")
        status, wanted = 200, self.headers.get("range", "")
        if wanted.startswith("bytes="):
            first, last = wanted.removeprefix("bytes=").split("-")
            status, body = 206, body[int(first) : int(last or len(body)) + 1]
        return self.reply(status, None, body)

    def reply(self, status, code, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0123456789abcdef"')
        self.send_header("X-Repo-Commit", COMMIT)
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.server.sent += len(body)
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache, no login, no proxy."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "tokens"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


def point_at(monkeypatch, endpoint):
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hf_api.api, "endpoint", endpoint)


@pytest.fixture
def server(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        running.asked, running.sent = [], 0
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        point_at(monkeypatch, f"http://127.0.0.1:{running.server_address[1]}")
        yield running
        running.shutdown()


@contextmanager
def listening(*, backlog):
    """A port that takes connections into its queue and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(backlog)
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def refusal(fetch, *arguments):
    begin = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        fetch(*arguments)
    seconds = time.perf_counter() - begin
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    assert seconds < 5, f"{seconds} s"
    return message


def test_a_config_is_fetched_once(server):
    path = hub.fetch_config("org/tiny")
    assert path.read_bytes() == CONFIG
    asked = len(server.asked)
    assert hub.fetch_config("org/tiny") == path
    assert len(server.asked) == asked
    assert {file for _, _, file in server.asked} == {"config.json"}
    assert hub.fetch_config("org/tiny", "v1").read_bytes() == CONFIG


def test_what_is_cached_is_read_offline(server, monkeypatch):
    path = hub.fetch_config("org/tiny")
    server.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch_config("org/tiny") == path
    message = refusal(hub.fetch_config, "org/bare")
    assert "not in the local cache, and HF_HUB_OFFLINE is set" in message
    assert "HF_HUB_OFFLINE" in refusal(hub.fetch_header, "org/tiny")
    assert server.asked == []


def test_a_header_without_the_weights(server):
    header = hub.fetch_header("org/tiny")
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in header.tensors.values()] == [
        ("w", "F32", (512, 256), 524_288),
        ("b", "BF16", (8,), 16),
    ]
    assert header.metadata == {"format": "pt"}
    assert header.path == "org/tiny"
    assert server.sent < 110_000


def test_the_headers_of_all_shards(server):
    header = hub.fetch_header("org/parts")
    assert [(t.name, t.shape) for t in header.tensors.values()] == [("a", (2,)), ("b", (3,))]
    assert header.files == tuple(PARTS)


def test_a_header_that_contradicts_itself(server):
    assert "takes 12 bytes" in refusal(hub.fetch_header, "org/wrong")
    assert "is in two shards" in refusal(hub.fetch_header, "org/doubled")


@pytest.mark.parametrize("fetch", [hub.fetch_config, hub.fetch_header])
@pytest.mark.parametrize(
    ("repo", "words"),
    [
        ("org/absent", "the hub has no such model, or it is private"),
        ("org/private", "the hub has no such model, or it is private"),
        ("org/gated", "is gated"),
        ("org/broken", "answered with status 503"),
        ("org/empty", "has no config.json"),
        ("not an id", "is not a hub id"),
        ("org/na\nme", "is not a hub id"),
    ],
)
def test_a_model_that_cannot_be_had(server, fetch, repo, words):
    assert words in refusal(fetch, repo)


def test_a_revision_and_weights_that_are_not_there(server):
    assert "no revision 'v9'" in refusal(hub.fetch_config, "org/tiny", "v9")
    assert "no .safetensors" in refusal(hub.fetch_header, "org/bare")


@pytest.mark.parametrize("fetch", [hub.fetch_config, hub.fetch_header])
def test_a_port_that_refuses(monkeypatch, fetch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    point_at(monkeypatch, endpoint)
    message = refusal(fetch, "org/tiny")
    assert f"the hub at {endpoint} cannot be reached" in message
    assert "config.json here" in message


def test_a_server_that_never_answers(monkeypatch):
    with listening(backlog=8) as endpoint:
        point_at(monkeypatch, endpoint)
        assert "cannot be reached" in refusal(hub.fetch_config, "org/tiny")


def test_a_name_that_does_not_resolve_in_time(monkeypatch):
    point_at(monkeypatch, "http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: time.sleep(30))
    monkeypatch.setattr(hub, "_PROBE_DEADLINE_SECONDS", 0.5)
    message = refusal(hub.fetch_config, "org/tiny")
    assert "cannot be reached (no answer within 0.5 s)" in message


def test_an_answer_that_trickles(monkeypatch):
    class Slow(Hub):
        def answer(self):
            for _ in range(20):
                self.wfile.write(b"H")
                self.wfile.flush()
                time.sleep(0.5)

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as running:
        running.daemon_threads = True
        running.handle_error = lambda *_: None
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        point_at(monkeypatch, f"http://127.0.0.1:{running.server_address[1]}")
        assert "cannot be reached" in refusal(hub.fetch_config, "org/tiny")
        running.shutdown()
        running.block_on_close = False


def test_a_connection_lost_after_the_first_answer(monkeypatch, server):
    def lost(*_args, **_options):
        raise errors.LocalEntryNotFoundError("the connection is gone\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lost)
    message = refusal(hub.fetch_config, "org/tiny")
    assert "cannot be reached (the connection is gone)" in message


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for fetch in (hub.fetch_config, hub.fetch_header):
        with pytest.raises(BackendError, match=r'pip install "manyheads\[models\]"'):
            fetch("org/tiny")


def test_in_a_process_of_its_own(server, home):
    """As a user would have it: endpoint and cache from the environment, and a process that ends at once."""
    code = (
        "import sys; from manyheads.checkpoints.hub import fetch_config; print(fetch_config(sys.argv[1]).read_text())"
    )
    environment = {
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
        "HF_HOME": str(home),
        "HF_ENDPOINT": constants.ENDPOINT,
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", code, "org/tiny"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == json.loads(CONFIG), done.stderr
    with listening(backlog=8) as endpoint:
        command[-1] = "org/other"
        begin = time.perf_counter()
        done = subprocess.run(
            command,
            check=False,
            env=environment | {"HF_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            timeout=60,
        )
        seconds = time.perf_counter() - begin
    assert done.stderr.splitlines()[-1].startswith(
        "manyheads.errors.CheckpointError: org/other: not in the local cache"
    )
    assert seconds < 8  # 3 of them for the probe, the rest for importing the client on a busy machine
