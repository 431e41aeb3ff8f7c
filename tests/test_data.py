"""The demo's data: complete, consistent, small, and answering its own questions."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np

from matrix_interop import data

#: Row of the sentence that answers each question best.
ANSWERS = [422, 814, 347, 635, 644, 292, 95, 552, 660, 340, 525, 238]


def test_every_vector_has_its_text() -> None:
    """Embeddings and questions are float16 rows of 384 numbers, one for each text."""
    embeddings, questions = np.load(data.embeddings_path()), np.load(data.questions_path())
    assert (embeddings.shape, embeddings.dtype) == ((1000, 384), np.float16)
    assert (questions.shape, questions.dtype) == ((12, 384), np.float16)
    assert [len(data.sentence_texts()), len(data.question_texts())] == [1000, 12]
    assert all(data.sentence_texts() + data.question_texts())


def test_vectors_have_unit_length() -> None:
    """Rounding to float16 moved no length by more than 0.0002."""
    rows = np.concatenate([np.load(data.embeddings_path()), np.load(data.questions_path())]).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=0, atol=2e-4)


def test_questions_find_their_answers() -> None:
    """A brute-force search puts the expected sentence first."""
    embeddings, questions = np.load(data.embeddings_path()), np.load(data.questions_path())
    scores = questions.astype(np.float32) @ embeddings.astype(np.float32).T
    assert scores.argmax(axis=1).tolist() == ANSWERS
    assert data.question_texts()[0] == "convert a string to a date"
    assert data.sentence_texts()[ANSWERS[0]] == "Convert a date string to a time tuple."


def test_licences_cover_every_package() -> None:
    """Each package named in sentences.jsonl has a section in LICENSES.txt."""
    folder = Path(str(files(data)))
    lines = (folder / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
    packages = {json.loads(line)["package"] for line in lines}
    licences = (folder / "LICENSES.txt").read_text(encoding="utf-8")
    sections = {line.split()[1] for line in licences.splitlines() if line.startswith("== ")}
    assert packages <= sections


def test_embeddings_are_the_first_rows_of_the_shared_base(shared_data: Path) -> None:
    """The file equals the first 1000 rows of the full float32 base, rounded."""
    base = np.load(shared_data / "text" / "minilm_base.npy", mmap_mode="r")
    np.testing.assert_array_equal(np.load(data.embeddings_path()), base[:1000].astype(np.float16))
