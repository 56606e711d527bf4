"""Reading the rule book: digests, lookups, and errors that name file, rule, key and a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16conv.errors import RuleError, UsageError
from fp16conv.rulebook.book import check_rules_file, load_book
from fp16conv.rulebook.types import Verdict

GOOD = '[[rule]]\nid = "my-rule"\nverdict = "deny"\nmatch = { op = ["Relu"] }\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_digest_depends_on_content_only(tmp_path: Path) -> None:
    plain, again = load_book().digest, load_book().digest
    mine = load_book(write(tmp_path, GOOD)).digest
    commented = load_book(write(tmp_path, "# a comment\n" + GOOD)).digest
    other = load_book(write(tmp_path, GOOD.replace("deny", "allow"))).digest
    assert plain == again
    assert mine == commented
    assert len({plain, mine, other}) == 3


def test_user_rules_follow_the_packaged_ones(tmp_path: Path) -> None:
    book = load_book(write(tmp_path, GOOD))
    assert book.rules[-1].id == "my-rule"
    assert not book.rules[-1].builtin
    relu = book.base_rule("Relu")
    assert relu is not None
    assert relu.id == "exact-unary", "a user's rule is no class"
    assert [r.id for r in book.rules_for("Relu")] == ["exact-unary", "my-rule"]


def test_check_returns_only_the_users_rules(tmp_path: Path) -> None:
    rules = check_rules_file(write(tmp_path, GOOD))
    assert [(r.id, r.verdict) for r in rules] == [("my-rule", Verdict.DENY)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no [[rule]]"]),
        ("rule = 3\n", ["expected a table"]),
        ("[[rule]\n", ["not a TOML file"]),
        ("[[rules]]\nid = 'a'\n", ["unknown key 'rules'", "did you mean 'rule'?"]),
        (GOOD.replace("my-rule", "My Rule"), ["'id'", "lower-case"]),
        (GOOD.replace('id = "my-rule"', "id = 3"), ["'id'", "string"]),
        (GOOD.replace("deny", "denied"), ["my-rule", "'verdict'", "did you mean 'deny'?"]),
        (GOOD.replace("deny", "never"), ["'verdict'", "use 'deny'"]),
        (GOOD.replace("match", "mach"), ["my-rule", "'match' is missing"]),
        (GOOD.replace('{ op = ["Relu"] }', "{ }"), ["matches everything"]),
        (GOOD.replace("op =", "ops ="), ["my-rule", "unknown key 'ops'", "did you mean 'op'?"]),
        (GOOD.replace('["Relu"]', "[1]"), ["'op'", "list of strings"]),
        (GOOD + 'colour = "red"\n', ["unknown key 'colour'"]),
        (GOOD.replace("my-rule", "exp-overflow"), ["'exp-overflow' is taken", "elementwise.toml"]),
        (GOOD.replace('["Relu"] }', '["Relu"], opset = [9, 7] }'), ["'opset'", "[lowest, highest]"]),
        (
            GOOD.replace('["Relu"] }', '["Relu"], fact = { when = [{ metric = "max_abd", above = 1 }] } }'),
            ["'metric'", "did you mean 'max_abs'?"],
        ),
        (
            GOOD.replace('["Relu"] }', '["Relu"], fact = { when = [{ metric = "max_abs" }] } }'),
            ["'above' or 'below' is required"],
        ),
        (
            GOOD.replace('["Relu"] }', '["Relu"], constant = { role = ["mask"] } }'),
            ["'role'", "unknown value 'mask'"],
        ),
        (GOOD + 'text = "{valeu}"\n', ["'{valeu}'", "did you mean 'value'?"]),
        (GOOD + 'relaxed = "infer"\nverdict2 = 1\n', ["unknown key 'verdict2'", "did you mean 'verdict'?"]),
    ],
)
def test_malformed_files_are_explained(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        load_book(path)
    assert caught.value.exit_code == 2
    for part in ["mine.toml", *parts]:
        assert part in str(caught.value)


def test_missing_file_is_a_rule_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot read the rules file"):
        load_book(tmp_path / "absent.toml")


def test_lookups_suggest() -> None:
    book = load_book()
    assert sorted(book.profiles) == ["balanced", "fast", "half", "safe"]
    targets = ["generic", "onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "torch-cuda"]
    assert sorted(book.targets) == targets
    for find, name, close in [
        (book.rule, "exp-overflw", "exp-overflow"),
        (book.profile, "balancd", "balanced"),
        (book.target, "onnxruntime-cud", "onnxruntime-cuda"),
    ]:
        with pytest.raises(UsageError, match=f"did you mean '{close}'"):
            find(name)


def test_kernel_tables_hold_known_facts() -> None:
    """Spot checks against docs/OperatorKernels.md of ONNX Runtime."""
    kernels = load_book().target("onnxruntime-cuda").kernels
    assert kernels is not None
    assert {k.types["T"] for k in kernels["Conv"]} == {"fh"}
    assert {k.types["T1"] for k in kernels["GridSample"]} == {"f"}
    assert {k.types["T"] for k in kernels["com.microsoft::GroupQueryAttention"]} == {"h"}
    assert "Tan" not in kernels
