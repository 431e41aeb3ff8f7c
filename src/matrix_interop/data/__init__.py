"""Real data of the demo: 1000 sentence embeddings, their sentences, and a dozen questions.

README.md in this folder says where they come from, LICENSES.txt under which licences.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

__all__ = ["embeddings_path", "question_texts", "questions_path", "sentence_texts"]


def embeddings_path() -> Path:
    """File of 1000x384 float16 row vectors of unit length, one a sentence, in .npy format."""
    return _path("embeddings.npy")


def questions_path() -> Path:
    """File of 12x384 float16 row vectors of unit length, one a question, in .npy format."""
    return _path("questions.npy")


def sentence_texts() -> list[str]:
    """The sentences, in the order of the embeddings."""
    return _texts("sentences.jsonl")


def question_texts() -> list[str]:
    """The questions, in the order of their vectors."""
    return _texts("questions.jsonl")


def _path(name: str) -> Path:
    return Path(str(files(__name__).joinpath(name)))


def _texts(name: str) -> list[str]:
    lines = _path(name).read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["text"]) for line in lines]
