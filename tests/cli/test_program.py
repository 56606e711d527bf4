"""Exit codes, streams, errors and help, with a stand-in for the pipeline."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

import fp16conv
from fp16conv import errors
from fp16conv.cli import app
from fp16conv.cli.overview import VERBS, overview, version
from fp16conv.reporting.report import (
    AnalyzeReport,
    ConvertReport,
    DecisionSummary,
    Evidence,
    Finding,
    ModelFacts,
    OutputFile,
    Severity,
    Size,
    ValidateReport,
    ValidationResult,
)

MODEL = ModelFacts("m.onnx", "0" * 64, {"": 17}, 8, "", 1, {"Add": 1}, (), (), 4)
DECISIONS = DecisionSummary(1, 0, 0, {}, 0, None, ())


def analyze_report(**changes: Any) -> AnalyzeReport:
    fields: dict[str, Any] = {"model": MODEL, "decisions": DECISIONS, "size": Size(4, 2)}
    return AnalyzeReport(tool_version="1", **(fields | changes))


def convert_report(written: bool = True) -> ConvertReport:
    output = OutputFile("o.onnx", 4) if written else None
    return ConvertReport(tool_version="1", model=MODEL, decisions=DECISIONS, size=Size(4, 2), output=output)


def validate_report(ok: bool) -> ValidateReport:
    result = ValidationResult(0.02, 0.001, ok, ())
    return ValidateReport(
        tool_version="1", reference="a", candidate="b", evidence=Evidence(True, 1), validation=result
    )


def run_process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


class Recorder:
    """Returns a fixed report and remembers how it was called."""

    def __init__(self, report: object) -> None:
        self.report = report
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        self.args, self.kwargs = args, kwargs
        return self.report


def raising(error: BaseException) -> Any:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    return function


# ---- exit codes ----


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ToleranceError, 1),
        (errors.UsageError, 2),
        (errors.RuleError, 2),
        (errors.PlanError, 2),
        (errors.DataError, 2),
        (errors.ModelError, 3),
        (errors.ConversionError, 4),
        (errors.ValidationError, 5),
        (errors.InternalError, 70),
    ],
)
def test_each_error_class_has_its_exit_code(cli: Any, kind: type[errors.Fp16convError], code: int) -> None:
    error = kind("went wrong", where="m.onnx", why="no luck", hint="try again")
    done = cli("analyze", "m.onnx", analyze=raising(error))
    assert done.code == code
    assert done.out == ""
    assert done.err == "error: m.onnx: went wrong: no luck: try again\n"


def test_every_error_class_is_in_the_table_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}
    known = [value for value in vars(errors).values() if isinstance(value, type)]
    classes = [kind for kind in known if issubclass(kind, errors.Fp16convError)]
    assert len(classes) > 5
    assert {c.exit_code for c in classes} <= documented
    assert {0, app.INTERNAL_ERROR, app.INTERRUPTED, app.PIPE_CLOSED} <= documented


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("boom\nsecond line"), AssertionError()])
def test_an_unexpected_error_is_our_bug_and_says_how_to_report_it(cli: Any, error: Exception) -> None:
    done = cli("analyze", "m.onnx", analyze=raising(error))
    assert done.code == 70
    assert done.out == ""
    assert done.err.startswith(f"error: {type(error).__name__}: ")
    assert "doctor" in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


def test_verbose_shows_the_traceback(cli: Any) -> None:
    done = cli("analyze", "m.onnx", "-v", analyze=raising(KeyError("x")))
    assert done.code == 70
    assert "Traceback" in done.err


def test_interrupt(cli: Any) -> None:
    done = cli("analyze", "m.onnx", analyze=raising(KeyboardInterrupt()))
    assert (done.code, done.out) == (130, "")
    assert done.err.strip().startswith("error: interrupted")


def test_analyze_fails_only_on_errors(cli: Any) -> None:
    for severity, code in ((Severity.NOTE, 0), (Severity.WARNING, 0), (Severity.ERROR, 1)):
        report = analyze_report(findings=(Finding(severity, "r", "w", "m"),))
        assert cli("analyze", "m.onnx", analyze=Recorder(report)).code == code


def test_convert_fails_when_nothing_was_written(cli: Any) -> None:
    assert cli("convert", "m.onnx", "-o", "o.onnx", convert=Recorder(convert_report())).code == 0
    missed = cli("convert", "m.onnx", "-o", "o.onnx", convert=Recorder(convert_report(False)))
    assert missed.code == 1
    assert "nothing: the tolerance was missed" in missed.out


def test_validate_fails_when_the_tolerance_is_missed(cli: Any) -> None:
    assert cli("validate", "a", "b", validate=Recorder(validate_report(True))).code == 0
    assert cli("validate", "a", "b", validate=Recorder(validate_report(False))).code == 1


# ---- usage errors ----


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["analyse", "m.onnx"], "did you mean 'analyze'?"),
        (["rules", "explian", "x"], "did you mean 'explain'?"),
        (["analyze", "m.onnx", "--profil", "fast"], "--profile"),
        (["analyze", "m.onnx", "--profile", "fats"], "did you mean 'fast'?"),
        (["analyze", "m.onnx", "--target", "onnxruntime-cud"], "'onnxruntime-cuda'"),
        (["analyze", "m.onnx", "--device", "a1O"], "'a10'"),
        (["analyze", "m.onnx", "--format", "jason"], "did you mean 'json'?"),
        (["analyze", "m.onnx", "--format", "xml"], "known: html, json"),
        (["convert", "m.onnx", "-o", "o", "--provider", "cda"], "did you mean 'cuda'?"),
        (["analyze", "m.onnx", "--shape", "x=1y3"], "is not NAME=SHAPE"),
        (["analyze", "m.onnx", "--shape", "1x3"], "is not NAME=SHAPE"),
        (["analyze", "m.onnx", "--shape", "x=1", "--shape", "x=2"], "--shape is given twice for 'x'"),
        (["analyze", "m.onnx", "--input-range", "x=1"], "is not NAME=LO:HI"),
        (["analyze", "m.onnx", "--input-range", "x=2:1"], "2 is above 1"),
        (["analyze", "m.onnx", "--input-range", "x=0:inf"], "is not NAME=LO:HI"),
        (["analyze", "m.onnx", "--memory-limit", "lots"], "is not a size"),
        (["analyze", "m.onnx", "--seed", "-1"], "--seed"),
        (["convert", "m.onnx", "-o", "o", "--rtol", "-1"], "is not a number from 0 on. See"),
        (["analyze", "m.onnx", "--input-range", "x=5:1"], "5 is above 1. See"),
        (["convert", "m.onnx", "-o", "o", "--rtol", "nan"], "is not a number from 0 on"),
        (["convert", "m.onnx", "-o", "o", "--rtol", "1", "--tolerance", "1"], "short for --rtol"),
        (["convert", "m.onnx"], "--output"),
        (["convert", "m.onnx", "-o", "o", "--plan", "p.json", "--profile", "fast"], "beside --plan"),
        (["analyze"], "MODEL"),
        (["analyze", "m.onnx", "-q", "-v"], "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_usage_errors_are_one_paragraph_with_the_flag_and_a_hint(
    cli: Any, args: list[str], expected: str
) -> None:
    done = cli(*args)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert expected in done.err


def test_a_name_cannot_write_escape_sequences_to_stderr(cli: Any) -> None:
    done = cli("analyze", "m.onnx", "--profile", "\x1b[31mred\u202e")
    assert done.code == 2
    assert "\x1b" not in done.err
    assert "\\x1b" in done.err


def test_the_output_may_not_be_an_input(cli: Any, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"precious")
    link = tmp_path / "link.onnx"
    link.symlink_to(model)
    hard = tmp_path / "hard.onnx"
    hard.hardlink_to(model)
    for output in (model, link, hard, tmp_path / "x" / ".." / "m.onnx"):
        for verb in ("convert", "plan"):
            done = cli(verb, model, "-o", output)
            assert done.code == 2
            assert "one of the input files" in done.err
    assert cli("convert", tmp_path / "n.onnx", "-o", model, "--data", model).code == 2
    assert model.read_bytes() == b"precious"


# ---- flags reach the API under the same words ----


def test_flags_become_arguments(cli: Any) -> None:
    api = Recorder(convert_report())
    cli(
        *("convert", "m.onnx", "-o", "o.onnx", "--data", "a.npz", "--data", "d", "--shape", "a=b=1x3"),
        *("--shape", "s=", "--input-range", "a=-1:2.5", "--profile", "fast", "--device", "t4"),
        *("--keep-fp32", "type:Exp", "--force-fp16", "/x*", "--rules", "r.toml", "--no-keep-io-types"),
        *("--repair", "fold-batchnorm"),
        *(
            "--seed",
            "3",
            "--memory-limit",
            "1.5GiB",
            "--tolerance",
            "0.5",
            "--atol",
            "0",
            "--provider",
            "emulated",
        ),
        *("--allow-out-of-tolerance", "--allow-integer-changes", "--no-validate", "--labels", "y"),
        convert=api,
    )
    assert api.args == ("m.onnx", "o.onnx")
    progress = api.kwargs.pop("progress")
    assert callable(progress)
    assert api.kwargs == {
        "data": ("a.npz", "d"),
        "shapes": {"a=b": (1, 3), "s": ()},
        "input_ranges": {"a": (-1.0, 2.5)},
        "profile": "fast",
        "target": "onnxruntime-cuda",
        "device": "t4",
        "keep_fp32": ("type:Exp",),
        "force_fp16": ("/x*",),
        "rules": ("r.toml",),
        "repairs": ("fold-batchnorm",),
        "keep_io_types": False,
        "seed": 3,
        "memory_limit": 3 * 2**29,
        "rtol": 0.5,
        "atol": 0.0,
        "provider": "emulated",
        "allow_out_of_tolerance": True,
        "allow_integer_changes": True,
        "labels": "y",
        "repair": True,
        "validate": False,
    }


def test_flags_that_were_not_given_leave_the_api_s_defaults(cli: Any) -> None:
    api = Recorder(validate_report(True))
    cli("validate", "a", "b", validate=api)
    assert not {"rtol", "atol", "memory_limit", "labels"} & set(api.kwargs)


def test_the_next_command_hands_on_the_flags(cli: Any) -> None:
    done = cli(
        *("analyze", "dir/my model.onnx", "--data", "a.npz", "--shape", "x=1x3", "--input-range", "x=0:1"),
        *("--profile", "fast", "--no-keep-io-types", "--format", "json"),
        analyze=Recorder(analyze_report()),
    )
    command = json.loads(done.out)["next_command"]
    assert command == (
        "fp16conv convert 'dir/my model.onnx' -o 'dir/my model.fp16.onnx' --data a.npz --shape x=1x3 "
        "--input-range x=0:1 --profile fast --no-keep-io-types"
    )


def test_after_a_miss_the_plan_to_edit_is_the_one_that_missed(cli: Any) -> None:
    done = cli(
        *("convert", "m.onnx", "-o", "o.onnx", "--data", "a.npz", "--force-fp16", "b", "--tolerance", "0.1"),
        *("--format", "json"),
        convert=Recorder(convert_report(written=False)),
    )
    command = json.loads(done.out)["next_command"]
    assert command == "fp16conv plan m.onnx -o plan.json --data a.npz --force-fp16 b"


# ---- streams ----


def test_json_on_stdout_and_nothing_else(cli: Any) -> None:
    done = cli("analyze", "m.onnx", "--format", "json", analyze=Recorder(analyze_report()))
    values = json.loads(done.out)
    assert values["schema"] == "fp16conv.analyze/1"
    assert values["ok"] is True
    assert done.err == ""


def test_text_without_a_terminal_has_no_escape_sequences(cli: Any) -> None:
    done = cli("analyze", "m.onnx", analyze=Recorder(analyze_report()))
    assert "\x1b" not in done.out
    assert "Can go FP16" in done.out


def test_colours_on_a_terminal_only_and_never_from_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    report = analyze_report(findings=(Finding(Severity.WARNING, "r", "[red]x[/red]\x1b[5m", "m"),))
    outputs = {}
    for no_color in (False, True):
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        stdout = Terminal()
        monkeypatch.setattr(sys, "stdout", stdout)
        functions = type("Api", (), {"analyze": staticmethod(Recorder(report))})
        assert app.run(["analyze", "m.onnx"], app.Environment(functions=functions)) == 0
        outputs[no_color] = stdout.getvalue()
    assert "\x1b[32m" in outputs[False]
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", outputs[True])
    for text in outputs.values():
        assert "[red]x[/red]" in text
        assert "\x1b[5m" not in text


@pytest.mark.parametrize(
    "args", [["rules", "list", "--format", "json"], ["rules", "--help"], ["--help"]], ids=" ".join
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_traceback(args: list[str], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fp16conv", *args],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == (b"", app.PIPE_CLOSED)


# ---- help and version ----


@pytest.mark.parametrize("verb", list(VERBS))
def test_help_of_every_verb_has_examples_and_fits(cli: Any, verb: str) -> None:
    done = cli(verb, "--help")
    assert done.code == 0
    assert f"fp16conv {verb}" in done.out
    assert "Examples:" in done.out
    assert max(map(len, done.out.splitlines())) <= 90


@pytest.mark.parametrize("verb", ["analyze", "plan", "convert", "validate"])
def test_help_states_the_limitations(cli: Any, verb: str) -> None:
    assert "Known limitation" in cli(verb, "--help").out


def test_every_flag_is_in_the_reference(cli: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for verb in VERBS:
        for flag in re.findall(r"--[a-z][a-z0-9-]+", cli(verb, "--help").out):
            assert flag in page, f"{flag} of {verb} is not in docs/reference/cli.md"


def test_the_overview_is_what_the_program_prints_and_lists_its_options(cli: Any) -> None:
    done = run_process("-m", "fp16conv", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == overview() == cli("-h", "analyze").out
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 80
    section = done.stdout.partition("Options:")[2].partition("Commands:")[0]
    options = app.program.get_params(app.program.make_context("fp16conv", ["x"]))
    assert {flag for param in options for flag in param.opts} == set(re.findall(r"(?<!\S)-[-a-z]+", section))


def test_version(cli: Any) -> None:
    done = cli("--version")
    assert done.out == run_process("-m", "fp16conv", "--version").stdout == version()
    assert done.out == f"fp16conv {fp16conv.__version__}\n"
    assert fp16conv.__version__ == metadata.version("fp16conv")


def test_a_closed_stdout_is_no_bug() -> None:
    command = f"exec '{sys.executable}' -m fp16conv rules list >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fp16conv", "nonsense"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "No such command" in done.stderr


def test_interrupting_the_process(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom types import SimpleNamespace\nfrom fp16conv.cli import run\n"
        "from fp16conv.cli.environment import Environment\n"
        "def analyze(*a, **k):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "sys.exit(run(['analyze', 'm'], Environment(functions=SimpleNamespace(analyze=analyze))))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == "error: interrupted; no file was left behind"
