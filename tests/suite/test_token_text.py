"""Text of token ids by a checkpoint's tokenizer: pieces that join, none without one, a damaged one told."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_model_source import save_checkpoint, written
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from suite.oracle import Oracle
from suite.plan import Options, make_plan
from suite.protocol import Close, Finished, OpenCase, RunArm, pack_case
from suite.report import token_tables
from suite.report.data import from_loaded
from suite.store import RunFolder, load_run
from suite.token_text import TokenTexts
from suite.worker import serve

WORDS = ("▁the", "▁capital", "▁of", "▁France", "▁is", "▁Paris", "▁are", ".")


def save_tokenizer(folder: Path, num_words: int = 300) -> None:
    """Ids 0 to 7 are WORDS, further ones their own numbers; a space before all but the first, as of Llama."""
    folder.mkdir(exist_ok=True)
    names = [*WORDS, *(f"▁{number}" for number in range(len(WORDS), num_words))]
    made = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, "▁the"))
    made.decoder = decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)


def test_pieces_keep_their_spaces_and_follow_what_came(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "mine")
    texts = TokenTexts(tmp_path / "mine")
    expected, produced = texts.of([2, 3, 4, 5], [2, 3, 6, 7]) or ((), ())
    assert produced == ("of", " France", " are", ".")
    assert expected == ("of", " France", " is", " Paris")
    assert texts.note is None


def test_an_id_beyond_the_vocabulary_has_no_text(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "mine", num_words=9)
    assert TokenTexts(tmp_path / "mine").of([2, 9_000], [2, -1]) == (("of", ""), ("of", ""))


def test_without_a_tokenizer_there_is_no_text_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    assert TokenTexts(None).of([1], [2]) is None
    empty = TokenTexts(tmp_path)
    assert empty.of([1], [2]) is None and empty.note is None
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    damaged = TokenTexts(tmp_path)
    assert damaged.of([1], [2]) is None
    assert damaged.note is not None and str(tmp_path) in damaged.note and "\n" not in damaged.note


def test_a_run_of_a_checkpoint_keeps_the_text_around_its_first_wrong_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "mine")
    save_tokenizer(tmp_path / "mine")
    (planned,) = make_plan([written(tmp_path, "{path: mine}")], Options(device="inline")).cases
    check = Oracle.check

    def spoiled(oracle: Oracle, request: object, output_ids: tuple[int, ...]) -> object:
        """As if the runner had put out another token at index 3."""
        wrong = (output_ids[3] + 1) % 300
        return check(oracle, request, [*output_ids[:3], wrong, *output_ids[4:]])  # type: ignore[arg-type]

    monkeypatch.setattr(Oracle, "check", spoiled)
    folder = RunFolder.create(tmp_path, "run")
    folder.write_config({"scenarios": [{"name": "checkpoint"}], "cases": [], "skipped": [], "invocation": {}})
    opening = OpenCase(
        case=pack_case(planned.case),
        seed=planned.seed,
        device="inline",
        workload_hash=planned.workload_hash,
        folder=str(folder.path),
        is_timed=False,
    )
    commands = iter([RunArm(run_id="a", arm="ids", round=0, is_warmup=False), Close()])
    replies: list[object] = []
    serve(opening, lambda: next(commands), replies.append)
    (record,) = [reply.record for reply in replies if isinstance(reply, Finished)]
    folder.append_run(record)
    loaded = load_run(folder.path)
    first = loaded.request_records("a")[0]
    assert first.expected_ids is not None and first.expected_texts is not None
    assert first.first_wrong == 3 and len(first.expected_texts) == len(first.expected_ids)
    names = [*(word.replace("▁", " ") for word in WORDS), *(f" {number}" for number in range(8, 300))]
    assert first.expected_texts[2] == names[first.expected_ids[2]]
    (scenario,) = from_loaded(loaded).scenarios
    table = token_tables.divergences(scenario)
    assert len(table.rows) == 4 and "[" in table.rows[0][-1].lines[0].text
