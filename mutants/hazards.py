"""The hazards that mutants stand for: rows of tests/hazards, with the numbers of vLLM's issues."""

from __future__ import annotations

MASK = "mask not refreshed (#45673, #37170)"
GATHER = "placeholder ids in the gather (#45383, #44842)"
PINNED = "source rewritten while its copy is in flight (#24527, #25279, #31841, #28706, #31373)"
DOWNLOAD = "download read before its event, or rows moved between (#36013, #38556, #53613)"
KEPT = "rows kept after their request (#57974, #57988)"
PREEMPTION = "preempted with its output in flight (#48245, #38624, #42117, #28787, #41190)"
CORRUPTION = "silent KV corruption (#45357, #47728, #45096)"
SYNC = "hidden synchronisation (#51841, #53412, #54292, #28141, #41429)"
EVENT = "a waiter woken by another step's event (#39115)"
RESULT = "result read before its event, or overwritten (#36942, #31570, #29623, #48901)"
NEXT_BATCH = "state of the next batch (vllm-ascend #11690)"
SPINNING = "spinning wait (#47081)"
