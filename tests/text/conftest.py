"""Shared fixtures of the text tests: the golden ids and the embedded model's tokenizer."""

import json
from pathlib import Path

import pytest

from engine.text.base import Tokenizer
from engine.text.gguf_tokenizer import tokenizer_from_metadata

GOLDEN = json.loads((Path(__file__).parent / "golden_smollm2.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    from engine.models.embedded import embedded_file
    from engine.models.gguf_file import GgufFile

    fields = GgufFile(embedded_file()).fields
    return tokenizer_from_metadata({key: fields[key].value for key in fields if key.startswith("tokenizer.")})


@pytest.fixture(scope="session")
def nasty_texts() -> list[str]:
    return [case["text"] for case in GOLDEN]
