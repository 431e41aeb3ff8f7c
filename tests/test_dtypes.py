"""Data types: names, DLPack codes, what is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from frameworks.table import EVERY, FLOAT8, dtype_of
from matrix_interop import MatrixBuilder, UnsupportedDtypeError, from_tensor
from matrix_interop.dtypes import (
    DLPACK_OF_DTYPE,
    DTYPE_OF_DLPACK,
    as_dtype,
    carrier,
    cast,
    is_extension,
    require_plain,
)

names = pytest.mark.parametrize("name", sorted(EVERY))


@names
def test_known_by_name_and_object(name: str) -> None:
    """A type is found by its name, by the NumPy dtype and scalar type, and by torch's and JAX's objects."""
    wanted = dtype_of(name)
    spellings = [name, wanted, wanted.type, getattr(jnp, {"bool": "bool_"}.get(name, name))]
    if hasattr(torch, name):
        spellings.append(getattr(torch, name))
    assert {as_dtype(spelling) for spelling in spellings} == {wanted}


@names
def test_codes_go_there_and_back(name: str) -> None:
    """Every type has a DLPack code of its own width, and the code leads back to it."""
    dtype = dtype_of(name)
    code = DLPACK_OF_DTYPE[dtype]
    assert code[1] == 8 * dtype.itemsize
    assert DTYPE_OF_DLPACK[code] == dtype
    assert len(DTYPE_OF_DLPACK) == len(DLPACK_OF_DTYPE) == len(EVERY)


@names
def test_carriers(name: str) -> None:
    """Types of ml_dtypes travel through NumPy as unsigned integers of their width, the others as themselves."""
    dtype = dtype_of(name)
    extension = name in FLOAT8 or name == "bfloat16"
    assert is_extension(dtype) == extension
    assert carrier(dtype) == (np.dtype(f"u{dtype.itemsize}") if extension else dtype)


def test_either_byte_order() -> None:
    """Plain numbers pass in the other byte order too, unchanged."""
    assert as_dtype(">f4").str == ">f4"
    assert as_dtype("<i2") == np.int16


@pytest.mark.parametrize(
    ("dtype", "way_out"),
    [
        (np.dtype([("a", "f4")]), "one field"),
        ("O", "rectangular"),
        ("U3", "astype"),
        ("S3", "astype"),
        ("M8[s]", "view"),
        ("m8[s]", "view"),
        (np.longdouble, "float64"),
        (np.clongdouble, "complex128"),
        (ml_dtypes.int4, "narrower than a byte"),
        (ml_dtypes.float4_e2m1fn, "narrower than a byte"),
    ],
)
def test_what_is_no_plain_number_is_refused(dtype: object, way_out: str) -> None:
    """The message names the type and what to do."""
    with pytest.raises(UnsupportedDtypeError, match=way_out) as caught:
        require_plain(np.dtype(dtype))
    assert str(np.dtype(dtype)) in str(caught.value)
    with pytest.raises(TypeError):
        as_dtype(dtype)


@pytest.mark.parametrize("dtype", ["float33", "torch.nothing", "", 7, object(), [1]])
def test_unknown_names(dtype: object) -> None:
    """What names no type is refused with what was written."""
    with pytest.raises(UnsupportedDtypeError, match=r"unsupported|unknown"):
        as_dtype(dtype)


def test_none_is_no_type() -> None:
    """None means "as it is" elsewhere and is no name for float64 here."""
    with pytest.raises(UnsupportedDtypeError):
        as_dtype(None)


@pytest.mark.parametrize(
    ("values", "dtype", "held"),
    [
        ([1, 300, -1], "uint8", [True, False, False]),
        ([0.5, 2.0, np.nan], "int32", [False, True, False]),
        ([0.1, 1e300, np.inf, np.nan], "float32", [True, False, True, True]),
        ([1.0, np.inf], "float8_e4m3fn", [True, False]),
        ([0.1 + 0j, 1j], "float32", [True, False]),
        ([0.1j, 1e300 + 0j], "complex64", [True, False]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_cast_says_what_fits(values: list[complex], dtype: str, held: list[bool]) -> None:
    """Fractions are rounded; what is cut, becomes infinite or NaN, or loses an imaginary part does not fit."""
    made, fits = cast(np.array(values), as_dtype(dtype))
    assert (made.dtype, fits.tolist()) == (as_dtype(dtype), held)


@pytest.mark.parametrize(
    "rows", [[[2**63 + 1, 1]], [[2**53 + 1, 0.5]], [np.array([2**60 + 1]), np.array([0.5])]], ids=str
)
def test_whole_numbers_in_lists_are_not_rounded(rows: list[Any]) -> None:
    """Where NumPy would make fractions of them, the number is named; what fractions hold comes in."""
    with pytest.raises(UnsupportedDtypeError, match="would round"):
        from_tensor(rows)
    assert from_tensor([[2**53, 0.5]]).array.tolist() == [[2**53, 0.5]]
    assert from_tensor([[1e300, 1, np.nan]]).dtype == np.float64


def test_a_builder_of_whole_numbers_rounds_none() -> None:
    """One of fractions does, as it says."""
    with pytest.raises(UnsupportedDtypeError, match=str(2**63 + 1)):
        MatrixBuilder(2, dtype="uint64").append([2**63 + 1, 1])
    builder = MatrixBuilder(2, dtype="float64")
    builder.append([2**63 + 1, 1])
    assert builder.finish().array.tolist() == [[2.0**63, 1]]
