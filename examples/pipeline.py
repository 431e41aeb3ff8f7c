"""From a file through a bfloat16 model into an index, back to the full vectors, and to texts; every hop says its plan.

    python examples/pipeline.py [DEVICE]

DEVICE: cpu (default) or cuda:0.  Needs torch and faiss-cpu; downloads nothing.  The "model" is one layer of random
weights, which shortens the shipped sentence embeddings and keeps their distances roughly.  Short vectors find
candidates quickly, the full ones put them in order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import matrix_interop as mi
from matrix_interop import data
from matrix_interop.search import build, knn

CANDIDATES = 50
WANTED = 2


def embed(model: torch.nn.Module, m: mi.Matrix, device: str) -> mi.Matrix:
    """Short vectors of unit length in float32, on the device of the model."""
    hop("file -> model", m.plan("torch", device=device, dtype="bfloat16"))
    with torch.inference_mode():
        short = mi.from_tensor(model(m.to_tensor("torch", device=device, dtype="bfloat16")))
    # Lengths want more digits than bfloat16 has, so it is widened first, where it is: nothing crosses a bus.
    hop("bfloat16 -> float32", short.plan(dtype="float32"))
    return short.astype("float32").normalized()


def hop(name: str, plan: mi.CopyPlan) -> None:
    """Print what one conversion will do."""
    print(f"[{name}] {plan}")


def main(device: str = "cpu") -> None:
    """Run all of it on one device."""
    base = mi.open_matrix(data.embeddings_path())  # mapped, read-only
    questions = mi.open_matrix(data.questions_path())[:3]

    torch.manual_seed(0)
    model = torch.nn.Linear(base.shape[1], 128, bias=False).to(device=device, dtype=torch.bfloat16)
    vectors = embed(model, base, device)
    asked = embed(model, questions, device)

    hop("model -> index", vectors.plan("numpy", device="cpu"))
    index = build(vectors.to_host(), "faiss")  # of unit vectors the default metric finds the order of the cosine
    found = index.search(asked.to_host().to_tensor("numpy"), CANDIDATES)

    texts = data.sentence_texts()
    for number, question in enumerate(data.question_texts()[: len(questions)]):
        ids: np.ndarray[Any, Any] = found.ids[number][: found.valid[number]]
        near = knn(questions[number : number + 1], base.take(ids), WANTED, metric="cosine")
        print(question)
        for place, distance in zip(near.ids[0], near.distances[0], strict=True):
            print(f"  {distance:.2f}  {texts[ids[place]]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
