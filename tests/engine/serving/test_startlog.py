"""Causes are taken from logs that vLLM 0.32 wrote for these faults, shortened."""

from __future__ import annotations

import pytest

from optimizer.engine.serving.startlog import cause_of, stage_of

ULIMIT = (
    "(APIServer pid=9) WARNING 12-01 06:36:21 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.\n"
)
RELAY = (
    "Traceback (most recent call last):\n"
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
)
LOGS = {
    "model_missing": (
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/nowhere/model'. Use `repo_type` argument if needed.\n"
        ),
        "no model at '/nowhere/model': give the path of a folder with a config.json",
    ),
    "context_too_long": (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
            "(max_position_embeddings=1024.0 or model_max_length=None in model's config.json).\n"
        ),
        "max_model_len 99999 is more than the 1024 positions the model has: lower max_model_len",
    ),
    "out_of_memory": (
        "(Worker pid=8590) ERROR 12-01 06:35:41 [multiproc_executor.py:1063]     raise ValueError(\n"
        "(Worker pid=8590) ERROR 12-01 06:35:41 [multiproc_executor.py:1063] ValueError: Available memory on node 0 "
        "(7.26/8.71 GiB) on kv cache allocation is less than requested memory for kv (300.0 GiB). Decrease\n" + RELAY,
        (
            "out of memory: 300.0 GiB of KV cache wanted, 7.26 GiB of memory left on node 0: lower the KV cache or "
            "free memory"
        ),
    ),
    "port_in_use": (
        "    sock.bind(addr)\nOSError: [Errno 98] Address already in use\n",
        "the port is in use: stop what listens there or choose another",
    ),
    "bad_argument": (
        "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --nonsense\n",
        "the server does not take this: unrecognized arguments: --nonsense",
    ),
    "weights_missing": (
        "(Worker pid=9450) ERROR 12-01 06:36:42 [multiproc_executor.py:953] RuntimeError: Cannot find any model "
        "weights with `/models/tiny`\n" + RELAY,
        "no weights in '/models/tiny': give the folder that has them, or load_format dummy",
    ),
    "no_space": (
        "OSError: [Errno 28] No space left on device: '/cache/inductor'\n" + RELAY,
        "no space left on the disk: free some, or move TMPDIR and the cache folder to a larger disk",
    ),
    "environment": (
        "/venv/bin/python: No module named vllm\n",
        "the serving environment is incomplete: No module named vllm: create it anew from its lock file",
    ),
}


@pytest.mark.parametrize("kind", LOGS)
def test_the_cause_is_named(kind: str) -> None:
    text, sentence = LOGS[kind]
    assert cause_of(ULIMIT + text, 1) == (kind, sentence)


def test_an_unknown_exception_is_shown_rather_than_its_relay() -> None:
    text = (
        "(Worker pid=3) ERROR 12-01 06:36:42 [core.py:9] some.package.OddError: the dog ate it\n"
        "(EngineCore pid=2) ERROR 12-01 06:36:42 [core.py:9] RuntimeError: Worker failed with error 'the dog'\n"
    )
    assert cause_of(text + RELAY, 1) == ("other", "OddError: the dog ate it")


def test_a_relay_is_better_than_nothing() -> None:
    kind, sentence = cause_of(RELAY, 1)
    assert kind == "other"
    assert sentence.startswith("RuntimeError: Engine core initialization failed")


def test_warnings_are_no_evidence() -> None:
    assert cause_of(ULIMIT + "bye\n", 3) == ("other", "exit status 3: bye")


def test_a_kill_names_the_likely_killer() -> None:
    kind, sentence = cause_of("", -9)
    assert kind == "out_of_memory"
    assert sentence == "killed by signal 9 (the kernel's out-of-memory killer, most likely)"
    assert cause_of("", -11) == ("other", "killed by signal 11")
    assert cause_of("", 0) == ("other", "exit status 0: it wrote nothing")


def test_stages_follow_the_latest_line() -> None:
    assert stage_of("") == "importing vLLM"
    text = "non-default args: {}\n"
    assert stage_of(text) == "reading the model's configuration"
    text += "[core.py:133] Initializing a V1 LLM engine\n[omp] OpenMP thread binding info:\n"
    assert stage_of(text) == "starting the workers"
    assert stage_of(text + "Application startup complete.\n") == "ready"
