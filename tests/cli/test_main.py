"""The door of the command line: one line for what goes wrong, the right exit status, and nothing loaded early."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import types

import pytest

import manyheads.cli.main as door
from manyheads.cli.main import TOUR, VERBS, build_parser, main
from manyheads.errors import CheckpointError, ManyheadsError, SpecError


@pytest.fixture
def verb(monkeypatch):
    """A verb `try` whose run is what the test says; returns the function that sets it."""

    def install(run, configure=lambda parser: None) -> None:
        module = types.ModuleType("manyheads.cli.try")
        module.configure, module.run = configure, run
        monkeypatch.setitem(sys.modules, "manyheads.cli.try", module)
        monkeypatch.setitem(VERBS, "try", "a verb of the tests")

    return install


def raising(error: BaseException):
    def run(options) -> int:
        raise error

    return run


def one_error_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("manyheads: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


def test_alone_it_prints_five_lines_each_with_a_command(capsys) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(len(line) <= 80 and "manyheads " in line for line in lines)


@pytest.mark.parametrize("command", [command for _, command in TOUR])
def test_every_command_of_the_tour_is_understood(command: str) -> None:
    name, verb, *words = shlex.split(command)
    assert name == "manyheads"
    build_parser(verb).parse_all(words)


@pytest.mark.parametrize("command", [command for _, command in TOUR if "xray" not in command])
def test_every_command_of_the_tour_answers(command: str, capsys) -> None:
    assert main(shlex.split(command)[1:]) in (0, 1)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) > 5
    assert err == ""


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_names_every_verb(words: list[str], capsys) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)


def test_version(capsys) -> None:
    import manyheads

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"manyheads {manyheads.__version__}\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_of_a_verb_is_the_status_of_the_command(verb, status: int) -> None:
    verb(lambda options: status)
    assert main(["try"]) == status


@pytest.mark.parametrize("error", [ManyheadsError, SpecError, CheckpointError])
def test_an_error_of_ours_is_one_line(verb, capsys, error: type[ManyheadsError]) -> None:
    verb(raising(error("d_model is 0;\n  1 or more would be valid\x1b[2J")))
    assert main(["try"]) == 2
    assert one_error_line(capsys) == "manyheads: d_model is 0; 1 or more would be valid\\x1b[2J\n"


def test_a_bug_says_that_it_is_one_and_how_to_see_more(verb, capsys) -> None:
    verb(raising(ZeroDivisionError("division by zero")))
    assert main(["try"]) == 2
    line = one_error_line(capsys)
    assert "bug in manyheads" in line
    assert "ZeroDivisionError: division by zero" in line
    assert "--debug" in line


@pytest.mark.parametrize("words", [["try", "--debug"], ["--debug", "try"]])
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), SpecError("y")])
def test_debug_shows_the_traceback(verb, capsys, words: list[str], error: Exception) -> None:
    verb(raising(error))
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("manyheads: ")


def test_an_interrupt_is_quiet(verb, capsys) -> None:
    verb(raising(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_missing_package_is_named_with_the_command_that_brings_it(verb, capsys) -> None:
    verb(raising(ModuleNotFoundError("No module named 'torch'", name="torch.nn")))
    assert main(["try"]) == 2
    line = one_error_line(capsys)
    assert "torch is needed" in line
    assert "pip install 'manyheads[models]'" in line


MEMORY = "a smaller model, a shorter text or a machine with more memory would do"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), f"memory ran out; {MEMORY}"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), f"memory ran out ([Errno 12] Cannot allocate memory); {MEMORY}"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "memory ran out (Def"),
        (OSError(errno.ENOSPC, "No space left on device", "/out/x"), "the system refuses: No space left on device: /out/x"),
        (PermissionError(errno.EACCES, "Permission denied", "y" * 5000), "the system refuses: Permission denied: yyy"),
        (OSError("odd"), "the system refuses: odd"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_no_bug(verb, capsys, error: Exception, said: str) -> None:
    verb(raising(error))
    assert main(["try"]) == 2
    line = one_error_line(capsys)
    assert line.startswith(f"manyheads: {said}")
    assert "bug" not in line
    assert len(line) < 500


def test_a_panic_of_a_library_in_rust_is_one_line(verb, capsys) -> None:
    verb(raising(type("PanicException", (BaseException,), {})("no entry found for key")))
    assert main(["try"]) == 2
    assert (
        one_error_line(capsys) == "manyheads: a library that reads a file of the model broke: no entry found for key\n"
    )


def test_a_current_folder_that_was_removed_is_said_to_be(tmp_path, python) -> None:
    (tmp_path / "gone").mkdir()
    script = (
        "import os, sys; os.chdir('gone'); os.rmdir('../gone'); from manyheads.cli.main import main; "
        "print([main(words.split()) for words in sys.argv[1:]])"
    )
    words = ["cost llama-2-70b --output x.txt", "cost ./x", "prune --heads 0:1 --output out", "check x.py:f"]
    done = python("-c", script, *words, cwd=tmp_path)
    assert done.stdout == "[2, 2, 2, 2]\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert (
        lines[0]
        == "manyheads: cannot write x.txt: the current folder is not there any more; a full path would be valid"
    )
    assert all("bug" not in line for line in lines)


def test_another_missing_module_is_a_bug(verb, capsys) -> None:
    verb(raising(ModuleNotFoundError("No module named 'manyheads.lost'", name="manyheads.lost")))
    assert main(["try"]) == 2
    assert "bug in manyheads" in one_error_line(capsys)


def configured(parser) -> None:
    def positive(text: str) -> int:
        if int(text) <= 0:
            raise SpecError(f"{text} tokens are asked for; 1 or more would be valid")
        return int(text)

    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--context", metavar="TOKENS", type=positive)
    parser.add_argument("--kv-dtype", choices=["bf16", "q8_0"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cots"], ["'cots' is not a verb", "did you mean cost?", "the verbs are cost, "]),
        (["--verison"], ["'--verison' is not an option", "did you mean --version?"]),
        (["try"], ["required: MODEL", "manyheads try --help"]),
        (["try", "m", "--contxt", "5"], ["there is no option --contxt", "did you mean --context?"]),
        (["try", "m", "--contxt=5"], ["there is no option --contxt;"]),
        (["try", "m", "--cont", "5"], ["there is no option --cont;"]),
        (["try", "m", "--context"], ["--context", "expected one argument"]),
        (["try", "m", "--context", "many"], ["--context", "'many'"]),
        (["try", "m", "--context", "0"], ["0 tokens are asked for; 1 or more would be valid"]),
        (["try", "m", "--kv-dtype", "q8"], ["'q8'", "bf16", "did you mean q8_0?"]),
        (["try", "m", "n"], ["nothing takes the word 'n'", "quote"]),
        (["try", "m", "\udcff"], ["nothing takes the word"]),
        (["try", "m", "\x1b[2J\n" * 9], ["nothing takes the word '\\x1b[2J\\n"]),
    ],
)
def test_a_wrong_command_line_is_one_line_that_helps(verb, capsys, words: list[str], said: list[str]) -> None:
    verb(lambda options: 0, configured)
    assert main(words) == 2
    line = one_error_line(capsys)
    assert [text for text in said if text not in line] == []


LONG = "y" * 100_000


@pytest.mark.parametrize(
    "words",
    [[LONG], ["--" + LONG], ["try", "m", LONG], ["try", "m", "--" + LONG], ["try", "m", "--context", LONG],
     ["try", "m", "--kv-dtype", LONG]],
)  # fmt: skip
def test_a_word_of_any_length_is_cut_where_it_is_told(verb, capsys, words: list[str]) -> None:
    verb(lambda options: 0, configured)
    assert main(words) == 2
    assert len(one_error_line(capsys)) < 800


def test_the_help_of_a_verb_is_shown_and_ends_well(verb, capsys) -> None:
    verb(lambda options: 0, configured)
    assert main(["try", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: manyheads try")
    assert "--context TOKENS" in out


# A printer of 400 kB, more than any pipe holds, so that the reader is gone before the end.
SPEAKER = """
import sys, types
import manyheads.cli.main as door
module = types.ModuleType("manyheads.cli.speak")
module.configure = lambda parser: None
def run(options):
    from manyheads.cli.common import write_stdout
    for _ in range(10_000):
        write_stdout("a line of some forty characters, no more\\n")
    return 0
module.run = run
sys.modules["manyheads.cli.speak"] = module
door.VERBS["speak"] = "says a lot"
sys.exit(door.main(["speak"]))
"""


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", SPEAKER], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKER], check=False, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 2
    reason = os.strerror(errno.ENOSPC)
    assert done.stderr.decode() == f"manyheads: cannot write the result to standard output: {reason}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [["--help"], [], ["--version"], ["cost", "--help"], ["facts"]])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_nothing_that_is_printed_onto_a_full_disk_is_a_bug(words: list[str], buffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "manyheads", *words], check=False, stdout=full, stderr=subprocess.PIPE, timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": buffered},
        )  # fmt: skip
    assert done.returncode == 2
    reason = os.strerror(errno.ENOSPC)
    assert done.stderr.decode() == f"manyheads: cannot write the result to standard output: {reason}\n"


def test_closed_streams_are_no_error(python) -> None:
    script = "import sys, os; from manyheads.cli.main import main; {}; os._exit(main(['--version']))"
    assert python("-c", script.format("sys.stdout = None")).returncode == 0
    assert python("-c", script.format("sys.stdout = sys.stderr = None")).returncode == 0


def test_a_narrow_encoding_does_not_end_the_program(python) -> None:
    script = "from manyheads.cli.main import main; from manyheads.cli import main as door; import sys; door.TOUR = (('µ', 'manyheads'),); sys.exit(main([]))"
    done = python("-c", script, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\xb5   manyheads\n", "")


def test_it_is_also_a_module(python) -> None:
    done = python("-m", "manyheads", "nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("manyheads: 'nonsense' is not a verb")


def test_verbs_are_not_loaded_before_they_are_asked_for(python) -> None:
    script = "import sys; from manyheads.cli.main import main; main(['--help']); print([m for m in sys.modules if m.startswith('manyheads.')])"
    assert python("-c", script).stdout.splitlines()[-1] == (
        "['manyheads.lazy', 'manyheads.cli', 'manyheads.quoting', 'manyheads.errors', 'manyheads.cli.common', "
        "'manyheads.cli.quantities', 'manyheads.record', 'manyheads.cli.options', 'manyheads.cli.stopping', 'manyheads.cli.main']"
    )


def test_every_verb_has_its_module() -> None:
    for verb in door.VERBS:
        assert callable(build_parser(verb).get_default("run"))
