"""A table of what users get wrong: scenario files, options and traces, and what the refusal must name."""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GOOD = """\
name: fine
model: tiny-gemma3-vl
requires:
  device: any
runner:
  max_model_len: 256
traffic:
  num_requests: 4
  arrivals: {kind: constant, rate: 8.0}
  prompt_tokens: {uniform: [8, 32]}
  output_tokens: {fixed: 8}
  multimodal_ratio: 0.5
rounds: 2
seed: 7
"""

REPLAY = """\
name: replay
model: tiny-gemma3-vl
traffic:
  arrivals:
    kind: trace
    path: trace.csv
    length_scale: 0.1
"""

AZURE = """\
TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2025-01-01T10:00:00.000Z,0,770,491
2025-01-01T10:00:01.500Z,1,949,126
2025-01-01T10:00:01.500Z,2,964,79
"""

REBASED = """\
arrival_time,input_tokens,output_tokens
0.0,770,491
5.55,949,126
6.244,964,79
"""


AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,770,491
2023-11-16 18:17:09.5299600,949,126
2023-11-16 18:17:10.2239600,964,79
"""

AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00+00:00,770,491
2024-05-10 00:00:05.550000+00:00,949,126
2024-05-10 00:00:06.244+00:00,964,79
"""

BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
"""

BURST_SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110,,0.5,ChatGPT,472,18,490,API log
19440150,17,1.5,ChatGPT,1087,230,1317,Conversation log
19440223,17,2,GPT-4,417,276,693,Conversation log
"""

VIDUR = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,770,491
5.55,949,126
6.244,964,79
"""

VIDUR_LENGTHS = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
770,491,1261,1.568
949,126,1075,7.532
964,79,1043,12.203
"""

MOONCAKE = """\
{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 5550, "input_length": 1500, "output_length": 12, "hash_ids": [0, 1, 3]}
{"timestamp": 6244, "input_length": 512, "output_length": 79, "hash_ids": [4]}
"""


def safetensors_bytes(shape: tuple[int, ...], value: float = 0.0, dtype: str = "F32") -> bytes:
    """A file with one tensor of float32 values, under whatever type it is declared."""
    values = array("f", [value] * math.prod(shape)).tobytes()
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(values)]}
    header = json.dumps({"prompt_embeds": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + values


@dataclass(frozen=True)
class BadInput:
    """Files to write into an empty folder, options to load scenario.yaml with, words of the refusal."""

    name: str
    files: Mapping[str, str | bytes]
    expect: tuple[str, ...]
    overrides: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> Path:
        """Write the files; returns the scenario's path, which may not exist."""
        for name, content in self.files.items():
            raw = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(raw)
        return folder / "scenario.yaml"


def _edited(name: str, old: str, new: str, *expect: str) -> BadInput:
    assert GOOD.count(old) == 1, f"{old!r} must stand once in the good scenario"
    line = GOOD[: GOOD.index(old)].count("\n") + 1
    return BadInput(name, {"scenario.yaml": GOOD.replace(old, new)}, (f"scenario.yaml:{line}:", *expect))


def _added(name: str, text: str, *expect: str) -> BadInput:
    """Text appended to the good scenario; the mistake is in its last line."""
    whole = GOOD + text
    line = whole.rstrip("\n").count("\n") + 1
    return BadInput(name, {"scenario.yaml": whole}, (f"scenario.yaml:{line}:", *expect))


def _set(name: str, override: str, *expect: str) -> BadInput:
    return BadInput(name, {"scenario.yaml": GOOD}, (f"--set {override}", *expect), (override,))


def _trace(name: str, trace: str | bytes, *expect: str, scenario: str = REPLAY) -> BadInput:
    return BadInput(name, {"scenario.yaml": scenario, "trace.csv": trace}, ("trace.csv", *expect))


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must stand once"
    return text.replace(old, new)


_KEYS = (
    _edited("typo at the top", "rounds: 2", "runds: 2", "unknown key runds", "2", "did you mean rounds?"),
    _edited(
        "typo in requires",
        "device: any",
        "devise: any",
        "unknown key requires.devise",
        "'any'",
        "did you mean requires.device?",
    ),
    _edited(
        "typo in runner",
        "max_model_len: 256",
        "max_model_length: 256",
        "unknown key runner.max_model_length",
        "256",
        "did you mean runner.max_model_len?",
    ),
    _edited(
        "typo in traffic",
        "multimodal_ratio: 0.5",
        "multimodel_ratio: 0.5",
        "unknown key traffic.multimodel_ratio",
        "0.5",
        "did you mean traffic.multimodal_ratio?",
    ),
    _edited(
        "typo in arrivals",
        "rate: 8.0",
        "rates: 8.0",
        "unknown key traffic.arrivals.rates",
        "8.0",
        "did you mean traffic.arrivals.rate?",
    ),
    _edited(
        "typo in a length",
        "uniform: [8, 32]",
        "unifrom: [8, 32]",
        "traffic.prompt_tokens",
        "[8, 32]",
        "did you mean uniform?",
    ),
    _edited(
        "key of another level",
        "rounds: 2",
        "max_num_seqs: 2",
        "unknown key max_num_seqs",
        "2",
        "did you mean runner.max_num_seqs?",
    ),
    _edited(
        "key of another arrival kind",
        "{kind: constant, rate: 8.0}",
        "{kind: all_at_once, rate: 8.0}",
        "unknown key traffic.arrivals.rate",
        "8.0",
        "remove it",
    ),
    _added("duplicate key", "seed: 8\n", "duplicate key", '"seed"', "8", "remove one"),
    _edited("key that is no text", "seed: 7", "7: 7", "the key 7 is not text", 'write it in quotes: "7"'),
    BadInput(
        "missing name",
        {"scenario.yaml": GOOD.replace("name: fine\n", "")},
        ("scenario.yaml", "name is missing", "add `name: my-scenario`"),
    ),
    BadInput(
        "missing traffic",
        {"scenario.yaml": "name: a\nmodel: tiny-qwen3\n"},
        ("scenario.yaml", "traffic is missing", "add `traffic: {num_requests: 16"),
    ),
    BadInput(
        "missing number of requests",
        {"scenario.yaml": GOOD.replace("  num_requests: 4\n", "")},
        ("scenario.yaml:7:", "traffic.num_requests is not given", "add `num_requests: 16`"),
    ),
    _edited(
        "missing rate",
        "{kind: constant, rate: 8.0}",
        "{kind: constant}",
        "traffic.arrivals.rate is missing",
        "add `rate: 4.0`",
    ),
)

_VALUES = (
    _edited("unknown model", "tiny-gemma3-vl", "tiny-gema3-vl", "'tiny-gema3-vl'", "mean tiny-gemma3-vl?"),
    _edited("unknown device", "device: any", "device: cudda", "requires.device", "'cudda'", "mean cuda?"),
    _edited(
        "unknown arrival kind",
        "kind: constant",
        "kind: constnt",
        "arrivals.kind",
        "'constnt'",
        "mean constant?",
    ),
    _edited("text for a number", "rounds: 2", "rounds: '2'", "rounds is '2'", "write 2 without quotes"),
    _edited("word for a number", "rounds: 2", "rounds: two", "rounds is 'two'", "must be a whole number"),
    _edited("boolean for a whole number", "rounds: 2", "rounds: true", "rounds is true", "a whole number"),
    _edited(
        "boolean for a number",
        "multimodal_ratio: 0.5",
        "multimodal_ratio: true",
        "traffic.multimodal_ratio is true",
        "must be a number",
    ),
    _edited(
        "boolean for a length",
        "{fixed: 8}",
        "true",
        "traffic.output_tokens is true",
        "{fixed: number}",
    ),
    _edited("fraction for a whole number", "seed: 7", "seed: 7.5", "seed is 7.5", "must be a whole number"),
    _edited("number for text", "name: fine", "name: 12", "name is 12", "put it in quotes"),
    _edited("date for text", "name: fine", "name: 2025-01-01", "name is 2025-01-01", "put it in quotes"),
    _edited("nothing for a number", "rounds: 2", "rounds:", "rounds is null", "must be a whole number"),
    BadInput(
        "list for a mapping",
        {"scenario.yaml": GOOD.replace("  device: any", "  [any]")},
        ("scenario.yaml:3:", "requires is ['any']", "must be a mapping"),
    ),
    _edited(
        "mapping for a list",
        "rounds: 2",
        "arms: {ids: 1}",
        "arms is {ids: 1}",
        "must be a list",
    ),
    _edited("zero rounds", "rounds: 2", "rounds: 0", "rounds is 0", "must be at least 1"),
    _edited("zero block size", "max_model_len: 256", "block_size: 0", "runner.block_size is 0", "at least 1"),
    _edited("zero requests", "num_requests: 4", "num_requests: 0", "traffic.num_requests is 0", "at least 1"),
    _edited("zero rate", "rate: 8.0", "rate: 0", "traffic.arrivals.rate is 0", "must be above 0"),
    _edited("zero prompt", "{uniform: [8, 32]}", "0", "traffic.prompt_tokens is 0", "at least 1"),
    _edited("negative seed", "seed: 7", "seed: -1", "seed is -1", "must be at least 0"),
    _edited("negative rate", "rate: 8.0", "rate: -2.5", "traffic.arrivals.rate is -2.5", "must be above 0"),
    _edited("infinite rate", "rate: 8.0", "rate: .inf", "traffic.arrivals.rate is .inf", "finite number"),
    _edited("rate that is no number", "rate: 8.0", "rate: .nan", "arrivals.rate is .nan", "finite number"),
    _edited("infinite count", "num_requests: 4", "num_requests: .inf", "is .inf", "must be a whole number"),
    _edited("ratio above one", "multimodal_ratio: 0.5", "multimodal_ratio: 1.5", "is 1.5", "at most 1"),
    _edited("ratio below zero", "multimodal_ratio: 0.5", "multimodal_ratio: -0.1", "is -0.1", "at least 0"),
    _edited("enormous count", "num_requests: 4", "num_requests: 9999999999", "9999999999", "1,000,000"),
    _edited("bounds swapped", "[8, 32]", "[32, 8]", "prompt_tokens.uniform is [32, 8]", "write [8, 32]"),
    _edited("three bounds", "[8, 32]", "[8, 9, 32]", "is [8, 9, 32]", "write [smallest, largest]"),
    _edited("two lengths", "{fixed: 8}", "{fixed: 8, uniform: [1, 2]}", "output_tokens", "exactly one of"),
    _edited("unknown arm", "rounds: 2", "arms: [refresj]", "'refresj' is no arm", "did you mean refresh?"),
    _edited("no arms", "rounds: 2", "arms: []", "arms is []", "at least 1 item"),
    _edited("arm named twice", "rounds: 2", "arms: [ids, ids]", "an arm stands twice", "name each once"),
    _edited("half a character", "name: fine", 'name: "\\ud800"', "name is '\\ud800'", "whole character"),
    _edited("empty name", "name: fine", "name: ''", "name is ''", "must not be empty"),
    _edited(
        "model too short for the runner",
        "max_model_len: 256",
        "max_model_len: 5000",
        "runner.max_model_len is 5000",
        "4096 positions",
        "lower it",
    ),
    _edited(
        "budget below the rows",
        "max_model_len: 256",
        "max_num_batched_tokens: 8",
        "runner.max_num_batched_tokens is 8",
        "runner.max_num_seqs 16",
        "raise it",
    ),
    _edited(
        "request longer than the model",
        "[8, 32]",
        "[8, 240]",
        "traffic.prompt_tokens",
        "240 text + 1 x 18 image + 8 output = 266 tokens",
        "runner.max_model_len is 256",
        "lower traffic.prompt_tokens",
    ),
    BadInput(
        "request larger than the cache",
        {"scenario.yaml": GOOD.replace("max_model_len: 256", "num_blocks: 3")},
        ("scenario.yaml:10:", "= 58 tokens", "runner.num_blocks x runner.block_size holds 48", "raise"),
    ),
    BadInput(
        "images on a text model",
        {"scenario.yaml": GOOD.replace("tiny-gemma3-vl", "tiny-qwen3")},
        ("scenario.yaml:12:", "traffic.multimodal_ratio is 0.5", "tiny-qwen3 takes no images", "set it to 0"),
    ),
)

_SWEEPS = (
    _added(
        "sweep of an unknown key",
        "sweep:\n  traffic.multimodal_ratoi: [0, 1]\n",
        "in the sweep",
        "unknown key traffic.multimodal_ratoi",
        "did you mean traffic.multimodal_ratio?",
    ),
    _added(
        "sweep with a bad value",
        "sweep:\n  traffic.multimodal_ratio:\n    - 0.5\n    - 2\n",
        "in the sweep",
        "traffic.multimodal_ratio is 2",
        "at most 1",
    ),
    _added(
        "sweep without a list",
        "sweep:\n  traffic.multimodal_ratio: 0.5\n",
        "sweep.traffic.multimodal_ratio is 0.5",
        "write [value, ...]",
    ),
    _added("sweep of the rounds", "sweep:\n  rounds: [1, 2]\n", "sweep.rounds is [1, 2]", "remove it"),
    _added(
        "sweep into a request too long",
        "sweep:\n  traffic.prompt_tokens:\n    - 16\n    - 400\n",
        "in the sweep",
        "400 text",
        "(in the case prompt_tokens=400)",
    ),
    _added("sweep with one value twice", "sweep: {seed: [3, 3]}\n", "are the same", "remove one"),
)

_OPTIONS = (
    _set("option with a typo", "traffic.multimodal_ratoi=1", "did you mean traffic.multimodal_ratio?"),
    _set("option with a typo above", "trafic.num_requests=1", "unknown key trafic", "mean traffic?"),
    _set("option with a bad value", "rounds=many", "rounds is 'many'", "must be a whole number"),
    _set("option with nothing", "rounds=", "rounds is null", "must be a whole number"),
    _set("option below a value", "rounds.first=1", "rounds is 2, not a mapping"),
    _set("option without a value", "rounds", "write for instance --set rounds=5"),
    _set("option that is not YAML", "arms=[ids", "not YAML", "brackets"),
    BadInput(
        "option that a sweep wins over",
        {"scenario.yaml": GOOD + "sweep: {seed: [1, 2]}\n"},
        ("--set seed=3", "seed is swept", "scenario.yaml:15", "--set 'sweep.seed=[...]'"),
        ("seed=3",),
    ),
    BadInput(
        "option with a trace that is not there",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("--set traffic.arrivals.path=gone.csv", "'gone.csv', no file", "the current directory, then"),
        ("traffic.arrivals.path=gone.csv",),
    ),
)

# Nine levels of ten aliases each: a few hundred bytes that unfold into a billion values.
_ALIASES = "level0: &level0 [1]\n" + "".join(
    f"level{n}: &level{n} [{', '.join([f'*level{n - 1}'] * 10)}]\n" for n in range(1, 10)
)

_FILES = (
    BadInput("missing scenario", {}, ("scenario.yaml", "no such file", "check the path")),
    BadInput("empty scenario", {"scenario.yaml": ""}, ("scenario.yaml", "is empty", "write a scenario")),
    BadInput("comments only", {"scenario.yaml": "# nothing\n"}, ("scenario.yaml", "is empty")),
    BadInput("list at the top", {"scenario.yaml": "- a\n- b\n"}, ("scenario.yaml:1", "a list", "key: value")),
    BadInput("text at the top", {"scenario.yaml": "smoke\n"}, ("scenario.yaml:1", "'smoke'", "key: value")),
    BadInput(
        "YAML that does not parse",
        {"scenario.yaml": "name: a\nmodel: [b\nrounds: 2\n"},
        ("scenario.yaml:3", "not YAML", "brackets"),
    ),
    BadInput("tab in YAML", {"scenario.yaml": "name: a\n\tb: 1\n"}, ("scenario.yaml:2", "not YAML")),
    BadInput(
        "not UTF-8",
        {"scenario.yaml": b"name: a\nmodel: \xff\xfe\n"},
        ("scenario.yaml:2:", "0xff", "save the file as UTF-8"),
    ),
    BadInput("two documents", {"scenario.yaml": GOOD + "---\nname: b\n"}, ("scenario.yaml:15", "holds one")),
    BadInput("YAML tag", {"scenario.yaml": GOOD.replace("rounds: 2", "rounds: !a 2")}, ("yaml:13", "tag")),
    BadInput(
        "aliases that unfold without end",
        {"scenario.yaml": _ALIASES},
        ("scenario.yaml:", "100000 values", "without aliases"),
    ),
    BadInput("nested too deeply", {"scenario.yaml": f"name: {'[' * 1200}"}, ("yaml", "nested too deeply")),
    BadInput("5,000 digits", {"scenario.yaml": f"seed: {'9' * 5000}\n"}, ("scenario.yaml", "digits")),
)

_TRACES = (
    BadInput(
        "missing trace",
        {"scenario.yaml": REPLAY},
        ("scenario.yaml:6:", "traffic.arrivals.path is 'trace.csv', no file; tried", "correct the path"),
    ),
    BadInput(
        "directory for a trace",
        {"scenario.yaml": REPLAY.replace("trace.csv", ".")},
        ("scenario.yaml:6:", "a directory", "name a file"),
    ),
    BadInput(
        "unknown trace format",
        {"scenario.yaml": REPLAY + "    format: azure-lm\n", "trace.csv": AZURE},
        ("scenario.yaml:8:", "traffic.arrivals.format is 'azure-lm'", "did you mean azure-lmm?"),
    ),
    BadInput(
        "lengths beside a trace",
        {"scenario.yaml": REPLAY + "  prompt_tokens: 32\n", "trace.csv": AZURE},
        ("scenario.yaml:8:", "traffic.prompt_tokens", "32", "remove it", "length_scale"),
    ),
    _trace(
        "trace of the other format",
        AZURE,
        ":1:",
        "is azure-lmm-rebased",
        "use format: auto",
        scenario=REPLAY + "    format: azure-lmm-rebased\n",
    ),
    _trace("empty trace", "", "is empty", "azure-lmm has TIMESTAMP,NumImages"),
    _trace("trace with a header only", AZURE.splitlines()[0], ":1:", "no rows", "add at least one row"),
    _trace(
        "trace without a header", AZURE.partition("\n")[2], ":1:", "no known format", "azure-lmm-rebased has"
    ),
    _trace("trace in UTF-16", AZURE.encode("utf-16"), ":1:", "it is in UTF-16: save the file as UTF-8"),
    _trace("row with a column less", _replaced(AZURE, ",1,949,126", ",949,126"), ":3:", "3 columns", "has 4"),
    _trace("row with a column more", _replaced(REBASED, "5.55", "5.55,1"), ":3:", "4 columns", "has 3"),
    _trace(
        "row that is no number", _replaced(AZURE, "949", "many"), ":3:", "ContextTokens is 'many'", "whole"
    ),
    _trace(
        "row with a fraction", _replaced(AZURE, "949", "949.5"), ":3:", "ContextTokens is '949.5'", "whole"
    ),
    _trace("row with an empty cell", _replaced(AZURE, "949", ""), ":3:", "ContextTokens is empty", "whole"),
    _trace(
        "row with a negative count",
        _replaced(AZURE, ",1,949", ",-1,949"),
        ":3:",
        "NumImages is '-1'",
        "at least 0",
    ),
    _trace("row without context", _replaced(REBASED, "949", "0"), ":3:", "input_tokens is '0'", "at least 1"),
    _trace(
        "row without output", _replaced(AZURE, ",126", ",0"), ":3:", "GeneratedTokens is '0'", "at least 1"
    ),
    _trace("row with a huge count", _replaced(AZURE, "949", "9" * 40), ":3:", "999999", "1,000,000,000"),
    _trace(
        "time that does not parse",
        _replaced(AZURE, "2025-01-01T10:00:00.000Z", "yesterday"),
        ":2:",
        "TIMESTAMP is 'yesterday'",
        "2024-10-15T12:00:00.269Z",
    ),
    _trace("time without a zone", _replaced(AZURE, "10:00:00.000Z", "10:00:00.000"), ":2:", "a zone"),
    _trace(
        "time of a 31st of June",
        _replaced(AZURE, "2025-01-01T10:00:00.000Z", "2025-06-31T10:00:00Z"),
        ":2:",
        "TIMESTAMP is '2025-06-31T10:00:00Z'",
    ),
    _trace(
        "time that is no number", _replaced(REBASED, "5.55", "nan"), ":3:", "arrival_time is 'nan'", "finite"
    ),
    _trace(
        "time without end", _replaced(REBASED, "5.55", "1e999"), ":3:", "arrival_time is '1e999'", "finite"
    ),
    _trace("negative time", _replaced(REBASED, "0.0,", "-0.5,"), ":2:", "arrival_time is '-0.5'", "negative"),
    _trace("times going back", _replaced(REBASED, "5.55", "7.5"), ":4:", "'6.244'", "before line 3", "sort"),
    _trace("quote left open", _replaced(REBASED, "949", '"949'), ":", "not CSV", "quotes"),
    _trace(
        "row longer than the model",
        _replaced(AZURE, "964", "9640"),
        ":4:",
        "928 text + 36 image + 8 output = 972 tokens",
        "9640 context",
        "runner.max_model_len is 512",
        "over_length to skip or truncate",
    ),
    _trace(
        "images in a trace for a text model",
        AZURE,
        ":3:",
        "the request has 1 images",
        "tiny-qwen3 takes none",
        "max_images to 0",
        scenario=REPLAY.replace("tiny-gemma3-vl", "tiny-qwen3"),
    ),
    _trace(
        "naive times in one file with another zone",
        _replaced(AZURE_2023, "18:17:09.5299600", "18:17:09.5299600+08:00"),
        ":3:",
        "TIMESTAMP is '2023-11-16 18:17:09.5299600+08:00'",
        "without a zone or in UTC",
    ),
    _trace("time of a 25th hour", _replaced(AZURE_2023, "18:17:09", "25:17:09"), ":3:", "TIMESTAMP is"),
    _trace("times of 2023 going back", _replaced(AZURE_2023, "18:17:09", "18:16:09"), ":3:", "before line 2"),
    _trace(
        "failed request refused",
        _replaced(BURST, "1087,230", "1087,0"),
        ":3:",
        "failed when it was recorded",
        "failed_requests to skip",
        scenario=REPLAY + "    failed_requests: error\n",
    ),
    _trace(
        "nothing but failed requests",
        BURST.replace(",18,", ",0,").replace(",230,", ",0,").replace(",276,", ",0,"),
        "every request of the trace failed",
        "raise traffic.arrivals.limit",
    ),
    _trace(
        "no request tokens", _replaced(BURST, "1087,230", "0,230"), ":3:", "Request tokens is '0'", "at least"
    ),
    _trace(
        "negative response", _replaced(BURST, "1087,230", "1087,-3"), ":3:", "Response tokens is '-3'", "0"
    ),
    _trace("lengths alone", VIDUR_LENGTHS, ":1:", "vidur-lengths has no times", "nothing to replay"),
    _trace("prefill of nothing", _replaced(VIDUR, "949", "0"), ":3:", "num_prefill_tokens is '0'"),
    _trace(
        "more blocks than the prompt has",
        '{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [0, 1]}\n',
        ":1:",
        "hash_ids is '[0, 1]'",
        "input_length of 20 makes 1 blocks of 512 tokens",
    ),
    _trace(
        "fewer blocks than the prompt has",
        _replaced(MOONCAKE, "[0, 1, 3]", "[0, 1]"),
        ":2:",
        "has 2 ids, but an input_length of 1500 makes 3 blocks",
    ),
    _trace(
        "one block at two lengths",
        _replaced(MOONCAKE, "[0, 1, 3]", "[0, 1, 2]"),
        ":2:",
        "the id 2 stands for 476 tokens here and for 6 in line 1",
    ),
    _trace("block that is no number", _replaced(MOONCAKE, "[4]", '["4"]'), ":3:", "list of whole numbers"),
    _trace(
        "negative block", _replaced(MOONCAKE, "[4]", "[-4]"), ":3:", "hash_ids is '[-4]'", "such as [0, 1]"
    ),
    _trace("true for a block", _replaced(MOONCAKE, "[4]", "[true]"), ":3:", "hash_ids is '[true]'"),
    _trace("blocks that are no list", _replaced(MOONCAKE, "[4]", "4"), ":3:", "hash_ids is '4'"),
    _trace(
        "text for a length", _replaced(MOONCAKE, "1500", '"1500"'), ":2:", "input_length is", "whole number"
    ),
    _trace(
        "fraction of a millisecond", _replaced(MOONCAKE, "5550", "5550.5"), ":2:", "timestamp is '5550.5'"
    ),
    _trace(
        "JSON of no end", _replaced(MOONCAKE, "79", "NaN"), ":3:", "output_length is 'NaN'", "whole number"
    ),
    _trace(
        "JSON printed over several lines",
        json.dumps(json.loads(MOONCAKE.splitlines()[0]), indent=2),
        ":1:",
        "one JSON value over several lines",
        "timestamp, input_length, output_length, hash_ids): write each on its own line",
        "a ServeGen client is named by its NAME-trace.csv",
    ),
    _trace("list of JSON", f"[{MOONCAKE.splitlines()[0]}]", ":1:", "or a list", "write each on its own line"),
    _trace(
        "histograms in place of rates",
        json.dumps({"0": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}),
        ":1:",
        "the histograms of a ServeGen client: name the file of its rates beside it, NAME-trace.csv",
    ),
    _trace(
        "key that stands twice",
        MOONCAKE.replace('"output_length": 5,', '"output_length": 5, "timestamp": 9,'),
        ":1:",
        "timestamp stands twice",
    ),
    _trace("semicolons", AZURE.replace(",", ";"), ":1:", "separated by semicolons: use commas"),
    _trace("tabs", AZURE.replace(",", "\t"), ":1:", "separated by tabs: use commas"),
    _trace("broken JSON", MOONCAKE + '{"timestamp": 9000, \n', ":4:", "is not JSON", "correct or remove"),
    _trace("JSON nested too deeply", MOONCAKE + "[" * 100_000 + "\n", ":4:", "is not JSON"),
    _trace("JSON that is no object", MOONCAKE + "[1, 2]\n", ":4:", "no JSON object"),
    _trace(
        "JSON without a key",
        _replaced(MOONCAKE, ', "hash_ids": [4]', ""),
        ":3:",
        "the keys are 'timestamp,input_length,output_length'",
        "must be timestamp,input_length,output_length,hash_ids",
    ),
    _trace(
        "JSON where a table was named",
        MOONCAKE,
        ":1:",
        "JSON lines",
        "format is azure-llm",
        "use format: auto",
        scenario=REPLAY + "    format: azure-llm\n",
    ),
    _trace(
        "table where JSON was named", AZURE, ":1:", "is mooncake", scenario=REPLAY + "    format: mooncake\n"
    ),
    BadInput(
        "shared prefix beside prefix blocks",
        {
            "scenario.yaml": REPLAY + "  shared_prefix: {groups: 2, tokens: 8}\n",
            "trace.csv": MOONCAKE,
        },
        ("scenario.yaml:8:", "traffic.shared_prefix", "its own equal beginnings: remove it"),
    ),
    _trace(
        "every row skipped",
        AZURE,
        "every row of",
        "traffic.arrivals.over_length",
        "lower traffic.arrivals.length_scale",
        scenario=REPLAY.replace("0.1", "1000") + "    over_length: skip\n",
    ),
)

_WITH_FILES = GOOD.replace("rounds: 2", "arms: [fused]") + "sweep: {traffic.embeds_files: [[rows.pt]]}\n"


def _rows(name: str, content: bytes, *expect: str, file: str = "rows.safetensors") -> BadInput:
    """A scenario with one file of embeddings, which is refused."""
    scenario = GOOD.replace("rounds: 2", "arms: [fused]").replace(
        "  multimodal_ratio: 0.5", f"  embeds_files: [{file}]"
    )
    return BadInput(name, {"scenario.yaml": scenario, file: content}, ("scenario.yaml:12:", file, *expect))


_EMBEDS = (
    _set("embeds ratio above one", "traffic.embeds_ratio=1.5", "embeds_ratio is 1.5", "at most 1"),
    _set("embeds ratio in words", "traffic.embeds_ratio=half", "embeds_ratio is 'half'", "a number"),
    _set("unknown kind", "traffic.embeds_kind=splced", "'splced'", "mean spliced?", "{spliced: share}"),
    _set("unknown share", "traffic.embeds_kind={pur: 1}", "embeds_kind.pur", "Known keys here: spliced"),
    _set("share above one", "traffic.embeds_kind={spliced: 2}", "embeds_kind.spliced is 2", "at most 1"),
    _set("negative noise", "traffic.embeds_noise=-1", "embeds_noise is -1", "at least 0"),
    _set("noise without end", "traffic.embeds_noise=.inf", "embeds_noise is .inf", "finite"),
    _set("negative host work", "runner.host_work_us=-5", "host_work_us is -5", "at least 0"),
    _set("no resident rows", "runner.num_resident_rows=0", "num_resident_rows is 0", "at least 1"),
    BadInput(
        "arena below a prompt",
        {"scenario.yaml": GOOD},
        ("--set runner.num_resident_rows=8", "is 8", "positions", "raise it"),
        ("traffic.embeds_ratio=1", "traffic.prompt_tokens=20", "runner.num_resident_rows=8"),
    ),
    _set("arm for text models", "arms=[ids, text]", "arm text is for text models", "tiny-gemma3-vl"),
    BadInput(
        "arm for multimodal models",
        {"scenario.yaml": GOOD.replace("0.5", "0")},
        ("--set arms=[overwrite]", "is for multimodal models", "tiny-qwen3 is a text model", "arm or model"),
        ("model=tiny-qwen3", "arms=[overwrite]"),
    ),
    _set("choices that mean nothing", "arms=[async/all/always/fused]", "means nothing", "embeds resident"),
    _set("choices with a typo", "arms=[async/all/alwys/where]", "no arm", "always|with-ids"),
    _set("paths that are no list", "traffic.embeds_files=rows.pt", "'rows.pt'", "write [value, ...]"),
    _set("embeddings not there", "traffic.embeds_files=[gone.pt]", "embeds_files[0]", "'gone.pt', no file"),
    BadInput(
        "swept embeddings not there",
        {"scenario.yaml": _WITH_FILES},
        ("scenario.yaml:15:", "'rows.pt', no file", "correct the path"),
    ),
    BadInput(
        "files beside a ratio",
        {"scenario.yaml": GOOD, "rows.safetensors": safetensors_bytes((4, 256))},
        ("--set traffic.embeds_ratio=0.5", "traffic.embeds_files", "remove it"),
        ("traffic.embeds_files=[rows.safetensors]", "traffic.embeds_ratio=0.5"),
    ),
    BadInput(
        "files beside a trace",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE, "rows.safetensors": safetensors_bytes((4, 256))},
        ("--set traffic.embeds_files=", "a trace has its own requests", "remove it"),
        ("traffic.embeds_files=[rows.safetensors]",),
    ),
    BadInput(
        "files for an arm without embeddings",
        {"scenario.yaml": GOOD, "rows.safetensors": safetensors_bytes((4, 256))},
        ("arms", "arm sync-ids takes token ids", "traffic.embeds_ratio"),
        ("traffic.embeds_files=[rows.safetensors]",),
    ),
    BadInput(
        "more files than requests without images",
        {"scenario.yaml": GOOD, "rows.safetensors": safetensors_bytes((4, 256))},
        ("--set traffic.embeds_files=", "1 files", "0 of 4 requests are without images", "num_requests"),
        ("traffic.multimodal_ratio=1", "arms=[fused]", "traffic.embeds_files=[rows.safetensors]"),
    ),
    _rows("file of another model", safetensors_bytes((4, 96)), "(rows, 256)", "float32 of shape (4, 96)"),
    _rows("file without rows", safetensors_bytes((0, 256)), "of shape (0, 256)", "at least one row"),
    _rows("file with a batch", safetensors_bytes((1, 4, 256)), "(1, 4, 256)", "without a batch"),
    _rows("file of integers", safetensors_bytes((4, 256), dtype="I32"), "I32 of shape", "bfloat16"),
    _rows("file with NaN", safetensors_bytes((4, 256), math.nan), "nan at row 0, column 0", "finite"),
    _rows("file cut short", safetensors_bytes((4, 256))[:-8], "no safetensors file, or one cut short"),
    _rows("file that is empty", b"", "no archive of torch.save", file="rows.pt"),
    _rows("file of another kind", b"x", "ends in .safetensors or .pt", file="rows.npy"),
    _rows("file longer than the runner", safetensors_bytes((250, 256)), "250 rows", "max_model_len is 256"),
)

_EXTREMES: tuple[BadInput, ...] = (
    BadInput(
        "rate without end",
        {"scenario.yaml": GOOD},
        ("traffic.arrivals.rate is 1e-320", "requests would come after inf s", "timeout_s"),
        ("traffic.arrivals.rate=1e-320",),
    ),
    BadInput(
        "rate beyond the timeout",
        {"scenario.yaml": GOOD},
        ("traffic.arrivals.rate is 0.001", "of 4 requests would come after 3,000 s", "timeout_s"),
        ("traffic.arrivals.rate=0.001",),
    ),
    BadInput(
        "cache beyond memory",
        {"scenario.yaml": GOOD},
        ("runner.num_blocks is 1000000", "bytes of memory", "lower it"),
        ("runner.num_blocks=1000000", "runner.block_size=1000000"),
    ),
    BadInput(
        "arm in two spellings",
        {"scenario.yaml": GOOD},
        ("an arm stands twice", "are the same", "name each once"),
        ("arms=[fused, async/resident/derived/fused]",),
    ),
    BadInput(
        "value that does not fit its tag",
        {"scenario.yaml": GOOD.replace("rounds: 2", "rounds: !!bool x")},
        ("does not fit its YAML tag",),
    ),
)


def _together(name: str, overrides: tuple[str, ...], *expect: str) -> BadInput:
    """Options that are wrong together, over the good scenario."""
    return BadInput(name, {"scenario.yaml": GOOD}, expect, overrides)


_SAMPLING = "traffic.sampling"
_FEATURES = (
    _set(
        "amplify of a misspelt span",
        "amplify={upload.is_tokn_ids: [1, 33]}",
        "amplify is",
        "did you mean upload.is_token_ids?",
    ),
    _set(
        "amplify of what must run once",
        "amplify={forward: [1, 33]}",
        "'forward' is no span",
        "one of: upload.",
    ),
    _set("amplify without once", "amplify={merge: [2, 33]}", "merge has [2, 33]", "1 among them"),
    _set("amplify twice as often", "amplify={merge: [1, 9, 9]}", "merge has [1, 9, 9]", "different"),
    _set("amplify by once alone", "amplify={merge: [1]}", "merge has [1]", "at least two"),
    _set("amplify without end", "amplify={merge: [1, 5000]}", "amplify.merge[1] is 5000", "at most 4,096"),
    _set("amplify by half", "amplify={merge: [1, 1.5]}", "amplify.merge[1] is 1.5", "a whole number"),
    _set("amplify by one number", "amplify={merge: 33}", "amplify.merge is 33", "write [value, ...]"),
    _set("amplify as a list", "amplify=[merge]", "amplify is", "must be a mapping"),
    _set(
        "typo in sampling",
        f"{_SAMPLING}.temprature=1",
        "unknown key",
        f"did you mean {_SAMPLING}.temperature?",
    ),
    _set("sampling as a number", f"{_SAMPLING}=0.8", f"{_SAMPLING} is 0.8", "must be a mapping", "top_p"),
    _set("negative temperature", f"{_SAMPLING}.temperature=-1", "temperature is -1", "at least 0"),
    _set("temperature without end", f"{_SAMPLING}.temperature=.inf", "temperature is .inf", "finite"),
    _set("temperature in words", f"{_SAMPLING}.temperature=warm", "temperature is 'warm'", "a number"),
    _set(
        "temperature next to zero",
        f"{_SAMPLING}.temperature=1e-9",
        "temperature is 1e-09",
        "0 (greedy)",
        "0.01",
    ),
    _set("negative top-k", f"{_SAMPLING}.top_k=-1", "top_k is -1", "at least 0"),
    _set("top-p of nothing", f"{_SAMPLING}.top_p=0", "top_p is 0", "above 0"),
    _set("top-p in percent", f"{_SAMPLING}.top_p=95", "top_p is 95", "at most 1"),
    _set("min-p above one", f"{_SAMPLING}.min_p=1.5", "min_p is 1.5", "at most 1"),
    _set("repetition penalty of nothing", f"{_SAMPLING}.repetition_penalty=0", "is 0", "at least 0.01"),
    _set("presence penalty too high", f"{_SAMPLING}.presence_penalty=2.5", "is 2.5", "at most 2"),
    _set("frequency penalty too low", f"{_SAMPLING}.frequency_penalty=-3", "is -3", "at least -2"),
    _set("too many log-probabilities", f"{_SAMPLING}.logprobs=21", "logprobs is 21", "at most 20"),
    _set("fewer log-probabilities than none", f"{_SAMPLING}.logprobs=-1", "logprobs is -1", "at least 0"),
    _set("log-probabilities switched on", f"{_SAMPLING}.logprobs=true", "logprobs is true", "a whole number"),
    _set("negative sampling seed", f"{_SAMPLING}.seed=-1", "sampling.seed is -1", "at least 0"),
    _set("seed beyond 63 bits", f"{_SAMPLING}.seed={2**63}", "sampling.seed is", "must be below"),
    _set("stop token alone", f"{_SAMPLING}.stop_token_ids=5", "stop_token_ids is 5", "write [value, ...]"),
    _set("stop text", f"{_SAMPLING}.stop_token_ids=[end]", "stop_token_ids[0] is 'end'", "a whole number"),
    _set(
        "too many stop tokens",
        f"{_SAMPLING}.stop_token_ids={list(range(17))}",
        "stop_token_ids is",
        "at most 16 items",
    ),
    _set(
        "stop token outside the vocabulary",
        f"{_SAMPLING}.stop_token_ids=[5, 4096]",
        "stop_token_ids is [5, 4096]",
        "token id 4096 is outside tiny-gemma3-vl's vocabulary of 4096",
        "use ids from 0 to 4095",
    ),
    _set(
        "bad word outside the vocabulary",
        f"{_SAMPLING}.bad_words=[7, [8, 50000]]",
        "bad_words is [7, [8, 50000]]",
        "token id 50000",
        "vocabulary of 4096",
    ),
    _set("bad word of nothing", f"{_SAMPLING}.bad_words=[[]]", "bad_words[0] is []", "at least 1 item"),
    _set("bad word in letters", f"{_SAMPLING}.bad_words=[[no]]", "bad_words[0][0] is 'no'", "a whole number"),
    _set(
        "bad word too long",
        f"{_SAMPLING}.bad_words=[{list(range(3, 12))}]",
        "bad_words[0] is",
        "at most 8 items",
    ),
    _set(
        "more tokens at least than at most",
        f"{_SAMPLING}.min_tokens=9",
        "min_tokens is 9",
        "the shortest output asked for has 8 tokens",
        "raise traffic.output_tokens",
    ),
    _together(
        "more tokens at least than the shortest output that can be drawn",
        ("traffic.output_tokens={uniform: [4, 200]}", f"{_SAMPLING}.min_tokens=5"),
        f"--set {_SAMPLING}.min_tokens=5",
        "the shortest output asked for has 4 tokens",
    ),
    BadInput(
        "more tokens at least than a trace asks for",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("min_tokens is 9", "has 8 tokens", "raise traffic.arrivals.length_scale"),
        (f"{_SAMPLING}.min_tokens=9",),
    ),
    _added(
        "sweep of sampling with a bad value",
        "sweep:\n  traffic.sampling.top_p:\n    - 1\n    - 1.2\n",
        "in the sweep",
        "traffic.sampling.top_p is 1.2",
        "at most 1",
    ),
    _set("caching that is no yes or no", "runner.prefix_caching=maybe", "is 'maybe'", "true or false"),
    _set("caching as a number", "runner.prefix_caching=1", "prefix_caching is 1", "true or false"),
    _set("negative drafts", "runner.num_speculative_tokens=-1", "is -1", "at least 0"),
    _set("very many drafts", "runner.num_speculative_tokens=1000", "is 1000", "at most 256"),
    _set(
        "a lookup longer than any request",
        "runner={max_model_len: 99, num_speculative_tokens: 2, prompt_lookup_min: 99, prompt_lookup_max: 99}",
        "runner.prompt_lookup_min is 99",
        "max_model_len 99",
        "nothing would ever be drafted: lower it",
    ),
    _set("lookup of nothing", "runner.prompt_lookup_min=0", "prompt_lookup_min is 0", "at least 1"),
    _set(
        "lookup longer at least than at most",
        "runner.prompt_lookup_min=4",
        "runner.prompt_lookup_min is 4",
        "runner.prompt_lookup_max 3",
        "lower it",
    ),
    _set(
        "encoder budget below an image",
        "runner.max_encoder_tokens_per_step=15",
        "max_encoder_tokens_per_step is 15",
        "one image of tiny-gemma3-vl has 16 rows",
        "raise it",
    ),
    _set(
        "another way for images to attend",
        "image_attention=both",
        "image_attention is 'both'",
        "causal, bidirectional",
    ),
    BadInput(
        "a text model without images to attend",
        {"scenario.yaml": GOOD},
        ("image_attention is 'bidirectional'", "tiny-qwen3 takes no images; remove it"),
        ("model=tiny-qwen3", "traffic.multimodal_ratio=0", "image_attention=bidirectional"),
    ),
    BadInput(
        "a model whose images attend causally only",
        {"scenario.yaml": GOOD},
        ("image_attention is 'bidirectional'", "tiny-qwen2.5-vl is none whose images attend", "remove it"),
        ("model=tiny-qwen2.5-vl", "image_attention=bidirectional"),
    ),
    BadInput(
        "an image that no step holds whole",
        {"scenario.yaml": GOOD},
        (
            "--set runner.max_num_batched_tokens=15",
            "runner.max_num_batched_tokens is 15",
            "one image of tiny-gemma3-vl has 16 rows",
            "raise it, or set image_attention: causal",
        ),
        ("image_attention=bidirectional", "runner.max_num_seqs=8", "runner.max_num_batched_tokens=15"),
    ),
    _added(
        "sweep into an encoder budget below an image",
        "sweep:\n  runner.max_encoder_tokens_per_step:\n    - 16\n    - 8\n",
        "in the sweep",
        "runner.max_encoder_tokens_per_step is 8",
        "(in the case max_encoder_tokens_per_step=8)",
    ),
    _set("shared prefix as a number", "traffic.shared_prefix=64", "is 64", "a mapping", "groups, tokens"),
    _set(
        "shared prefix without its length",
        "traffic.shared_prefix={groups: 2}",
        "traffic.shared_prefix.tokens is missing",
        "add `tokens: 64`",
    ),
    _set("no groups", "traffic.shared_prefix={groups: 0, tokens: 4}", "groups is 0", "at least 1"),
    _set("prefix of nothing", "traffic.shared_prefix={groups: 1, tokens: 0}", "tokens is 0", "at least 1"),
    _set(
        "images of a group misspelt",
        "traffic.shared_prefix={groups: 1, tokens: 4, images: sharde}",
        "images is 'sharde'",
        "did you mean shared?",
    ),
    _set(
        "prefix longer than any prompt",
        "traffic.shared_prefix={groups: 1, tokens: 33}",
        "traffic.shared_prefix.tokens is 33",
        "the longest has 32 tokens",
        "raise traffic.prompt_tokens",
    ),
    _together(
        "distinct images beside a group's own",
        ("traffic.shared_prefix={groups: 1, tokens: 4, images: shared}", "traffic.distinct_images=2"),
        "--set traffic.distinct_images=2",
        "each group has its own",
        "remove it",
    ),
)

_PACES = (
    _set(
        "no places", "traffic.arrivals={kind: closed_loop, concurrency: 0}", "concurrency is 0", "at least 1"
    ),
    _set("closed loop without its size", "traffic.arrivals={kind: closed_loop}", "add `concurrency: 8`"),
    _set(
        "closed loop with a rate",
        "traffic.arrivals={kind: closed_loop, concurrency: 2, rate: 4}",
        "unknown key traffic.arrivals.rate",
        "remove it",
    ),
    _set("limit of nothing", "traffic.arrivals.max_concurrency=0", "max_concurrency is 0", "at least 1"),
    _set("negative limit", "traffic.arrivals.max_concurrency=-1", "max_concurrency is -1", "at least 1"),
    _set("limit that is no number", "traffic.arrivals.max_concurrency=.nan", "is .nan", "whole number"),
    _set("poisson without a rate", "traffic.arrivals={kind: poisson}", "rate is missing", "add `rate: 4.0`"),
    _set("poisson of rate zero", "traffic.arrivals={kind: poisson, rate: 0}", "rate is 0", "above 0"),
    _set("poisson without end", "traffic.arrivals={kind: poisson, rate: .inf}", "rate is .inf", "finite"),
    _set(
        "gamma without burstiness",
        "traffic.arrivals={kind: gamma, rate: 4}",
        "burstiness is missing",
        "add `burstiness: 0.5`",
    ),
    _set(
        "burstiness of nothing",
        "traffic.arrivals={kind: gamma, rate: 4, burstiness: 0}",
        "burstiness is 0",
        "at least 0.001",
    ),
    _set(
        "ramp from nothing",
        "traffic.arrivals={kind: ramp, from_rate: 0, to_rate: 4}",
        "from_rate is 0",
        "above 0",
    ),
    _set(
        "ramp of no time",
        "traffic.arrivals={kind: ramp, from_rate: 1, to_rate: 4, duration_s: 0}",
        "duration_s is 0",
        "above 0",
    ),
    _set(
        "spacing misspelt",
        "traffic.arrivals={kind: ramp, from_rate: 1, to_rate: 4, spacing: evn}",
        "spacing is 'evn'",
        "mean even?",
    ),
    _set("misspelt process", "traffic.arrivals.kind=poison", "kind is 'poison'", "mean poisson?"),
    _set(
        "poisson longer than the run may take",
        "traffic.arrivals={kind: poisson, rate: 0.001}",
        "the last of 4 requests would come after",
        "raise the rate or timeout_s",
    ),
    _set(
        "ramp longer than the run may take",
        "traffic.arrivals={kind: ramp, from_rate: 0.001, to_rate: 0.002, spacing: even}",
        "the last of 4 requests would come after 2,000 s",
    ),
    BadInput(
        "trace longer than the run may take",
        {"scenario.yaml": REPLAY + "    time_scale: 1000\n", "trace.csv": AZURE},
        (
            "scenario.yaml:8:",
            "time_scale is 1000",
            "would come after 1,500 s",
            "lower traffic.arrivals.limit",
        ),
    ),
    BadInput(
        "a trace's times beside a process",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("time_scale is 2", "the times are traffic.arrivals.process's", "remove it"),
        ("traffic.arrivals.process={kind: poisson, rate: 4}", "traffic.arrivals.time_scale=2"),
    ),
    BadInput(
        "two limits",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("max_concurrency is 2", "put it into traffic.arrivals.process"),
        ("traffic.arrivals.process={kind: poisson, rate: 4}", "traffic.arrivals.max_concurrency=2"),
    ),
    BadInput(
        "a trace for a trace's process",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("process.kind is 'trace'", "must be one of: all_at_once, closed_loop"),
        ("traffic.arrivals.process={kind: trace, path: trace.csv}",),
    ),
    BadInput(
        "a process longer than the run may take",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("traffic.arrivals.process.rate is 0.001", "the last of 3 requests", "lower traffic.arrivals.limit"),
        ("traffic.arrivals.process={kind: constant, rate: 0.001}",),
    ),
    BadInput(
        "a rate for a trace",
        {"scenario.yaml": REPLAY, "trace.csv": AZURE},
        ("unknown key traffic.arrivals.rate",),
        ("traffic.arrivals.rate=4",),
    ),
)

_LENGTHS = (
    _set("lognormal as a number", "traffic.prompt_tokens={lognormal: 8}", "is 8", "a mapping with the keys"),
    _set(
        "lognormal without its largest",
        "traffic.prompt_tokens={lognormal: {median: 8, sigma: 1}}",
        "lognormal.max is missing",
        "add `max: 1024`",
    ),
    _set(
        "lognormal with a typo",
        "traffic.prompt_tokens={lognormal: {median: 8, sigma: 1, maximum: 9, max: 9}}",
        "unknown key traffic.prompt_tokens.lognormal.maximum",
    ),
    _set(
        "negative sigma",
        "traffic.prompt_tokens={lognormal: {median: 8, sigma: -1, max: 9}}",
        "sigma is -1",
        "at least 0",
    ),
    _set(
        "median of nothing",
        "traffic.prompt_tokens={lognormal: {median: 0, sigma: 1, max: 9}}",
        "median is 0",
        "above 0",
    ),
    _set(
        "bounds of a lognormal swapped",
        "traffic.prompt_tokens={lognormal: {median: 8, sigma: 1, min: 9, max: 7}}",
        "min is 9",
        "above max, 7",
    ),
    _set(
        "median outside the bounds",
        "traffic.prompt_tokens={lognormal: {median: 80, sigma: 1, max: 70}}",
        "median is 80",
        "from min, 1, to max, 70",
    ),
    _set(
        "lognormal longer than the model",
        "traffic.prompt_tokens={lognormal: {median: 8, sigma: 1, max: 400}}",
        "400 text",
        "runner.max_model_len is 256",
    ),
    _set("histogram of nothing", "traffic.output_tokens={histogram: {}}", "is {}", "write {", "weights"),
    _set("histogram as a list", "traffic.output_tokens={histogram: [1, 2]}", "is [1, 2]", "map values"),
    _set(
        "histogram of words",
        "traffic.output_tokens={histogram: {few: 1}}",
        "few is no whole number from 1 to 1,000,000",
    ),
    _set("histogram with a zero", 'traffic.output_tokens={histogram: {"0": 1}}', "0 is no whole number"),
    _set(
        "histogram with a number for a key",
        "traffic.output_tokens={histogram: {8: 1}}",
        "the key 8 is not text",
        'write it in quotes: "8"',
    ),
    _set(
        "weight of nothing",
        'traffic.output_tokens={histogram: {"8": 1, "9": 0}}',
        "histogram.9 is 0",
        "above 0",
    ),
    BadInput(
        "histogram longer than the model",
        {"scenario.yaml": GOOD},
        ("scenario.yaml:10: traffic.prompt_tokens", "900 output", "runner.max_model_len is 256"),
        ('traffic.output_tokens={histogram: {"8": 1, "900": 0.1}}',),
    ),
)

BAD_INPUTS: tuple[BadInput, ...] = (
    *_PACES,
    *_LENGTHS,
    *_KEYS,
    *_VALUES,
    *_SWEEPS,
    *_OPTIONS,
    *_FILES,
    *_TRACES,
    *_EMBEDS,
    *_EXTREMES,
    *_FEATURES,
)
