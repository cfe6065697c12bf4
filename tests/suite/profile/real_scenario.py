"""A short run that real profilers capture: text, embeddings and images. Holds no assertion of its subject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from suite.cli import app

_SCENARIO = """
name: captured
model: tiny-gemma3-vl
runner: {max_num_seqs: 8, max_num_batched_tokens: 64, max_model_len: 128}
traffic:
  num_requests: 8
  arrivals: {kind: all_at_once}
  prompt_tokens: {uniform: [12, 40]}
  output_tokens: {uniform: [8, 12]}
  multimodal_ratio: 0.5
  embeds_ratio: 0.5
arms: [refresh]
rounds: 1
timeout_s: 400
"""


def invoke_profile(folder: Path, *options: str) -> Result:
    """`suite profile` of it, as JSON."""
    folder.mkdir(exist_ok=True)
    scenario = folder / "scenario.yaml"
    scenario.write_text(_SCENARIO)
    arguments = ["profile", scenario, "--device", "process", "-o", folder / "out", "--json", *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def profile_scenario(folder: Path, *options: str) -> dict[str, Any]:
    """What that prints; it must go well."""
    result = invoke_profile(folder, *options)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document
