"""Removes each wait, order and hold of the library in turn, to see whether the device tests notice.

``python tests/simulated/mutations.py NAME ...`` looks for tests that do (of the waits named, else of those that the
table lacks).
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "matrix_interop"
#: Calls that, as statements of their own, wait, make somebody wait, or keep memory until somebody is done.
WAITS = frozenset(
    {
        "_drain",
        "_finish",
        "_follow",
        "_wait_for_users",
        "drain",
        "finish",
        "follow",
        "join",
        "keep_until",
        "leave",
        "make_ready",
        "order_streams",
        "record_stream",
        "shutdown",
        "stream_synchronize",
        "sync",
        "synchronize",
        "wait",
        "wait_for",
    }
)
#: A call that waits and gives back what it was called on.
_PASSES_ON = "block_until_ready"
#: Left out: the rooms that measure and print, on whose waits no value rests.
_LEFT_OUT = ("bench/", "cli/")

_BUILDER = "tests/test_builder.py::"
_CUVS = "tests/search/test_cuvs.py::"
_LANES = "tests/transfer/test_lanes.py::"
_MOVES = "tests/exchange/test_moves.py::"
_ROWS = "tests/test_rows.py::"
_STAGING = "tests/transfer/test_staging.py::"
_VIEWS = "tests/simulated/test_adapter.py::"
_WAITS = "tests/exchange/test_waits.py::"
#: Waits, each with a test that fails without it.
NOTICED_BY = {
    "builder.py:_HostRows.finish:finish": _BUILDER + "test_pages_of_the_host_beyond_the_end_go_back",
    "builder.py:_DeviceRows.flush:synchronize": _BUILDER + "test_rows_that_the_device_still_reads_are_left_alone",
    "builder.py:_DeviceRows.send:_follow": _BUILDER + "test_device_rows_come_after_the_kernels_that_make_them",
    "builder.py:_DeviceRows.send:finish": _BUILDER + "test_device_rows_come_after_the_kernels_that_make_them",
    "builder.py:_DeviceRows._have:_follow": _BUILDER + "test_rows_go_to_memory_that_nobody_uses_any_more",
    "builder.py:_DeviceRows._have:keep_until": _BUILDER + "test_memory_is_held_until_it_is_written",
    "builder.py:_DeviceRows._have:finish": _BUILDER + "test_memory_that_became_too_small_is_read_before_it_goes_back",
    "builder.py:_DeviceRows._follow:follow": _BUILDER + "test_device_rows_come_after_the_kernels_that_make_them",
    "builder.py:_DeviceRows.finish:keep_until": _BUILDER
    + "test_the_matrix_is_held_until_the_stream_of_finish_has_read_it",
    "builder.py:_DeviceRows.finish:follow": _BUILDER + "test_the_matrix_is_ready_on_the_stream_of_finish",
    "exchange/convert.py:copy_to:wait": _WAITS + "test_rows_gathered_where_the_device_writes_ordinary_memory",
    "exchange/moves.py:_packed:order_streams": _MOVES + "test_memory_whose_producer_named_a_stream",
    "exchange/moves.py:_peer_copy:wait_for": _MOVES + "test_peer_copy",
    "exchange/moves.py:_peer_copy:wait_for 2": _MOVES + "test_peer_copy_converts",
    "exchange/moves.py:_peer_copy:keep_until": _WAITS + "test_a_source_is_kept_while_another_device_reads_it",
    "exchange/moves.py:start_fetch:order_streams": _MOVES + "test_to_host_on_a_named_stream",
    "exchange/moves.py:start_fetch:keep_until": _MOVES + "test_a_dropped_transfer_fills_what_the_caller_keeps",
    "frameworks/dpnp.py:DpnpFramework.current_stream:wait": _WAITS + "test_dpnp_is_asked_to_finish",
    "frameworks/jax.py:_Capsule.__dlpack__:make_ready": "tests/frameworks/test_standins.py::test_torch_to_jax_waits",
    "frameworks/streams.py:order_streams:wait_for": _VIEWS + "test_export_is_ready_on_the_consumers_stream",
    "frameworks/streams.py:order_streams:keep_until": _VIEWS
    + "test_memory_outlives_its_array_until_the_consumer_is_done",
    "frameworks/streams.py:wait_for:wait": _VIEWS + "test_export_is_ready_on_the_consumers_stream",
    "frameworks/streams.py:keep_until:keep_until": _VIEWS + "test_memory_outlives_its_array_until_the_consumer_is_done",
    "frameworks/streams.py:share:make_ready": _MOVES + "test_to_device_on_a_named_stream",
    "frameworks/streams.py:share:order_streams": _MOVES + "test_sharing_is_ordered_both_ways",
    "frameworks/streams.py:make_ready:order_streams": _VIEWS + "test_export_is_ready_on_the_consumers_stream",
    "frameworks/torch.py:TorchFramework.keep_until:record_stream": "tests/frameworks/test_standins.py::"
    "test_memory_is_kept_for_the_consumer",
    "memory/arena.py:PinnedArena._wait_for_one:wait": "tests/memory/test_arena.py::"
    "test_at_the_limit_it_waits_for_pending_blocks",
    "memory/pages.py:populate:join": "tests/memory/test_pages.py",
    "memory/upstreams.py:_there_and_back:stream_synchronize": "tests/memory/test_upstreams.py::"
    "test_a_probe_waits_for_the_device",
    "memory/waiting.py:Waiting.wait:synchronize": "tests/memory/test_arena.py::"
    "test_at_the_limit_it_waits_for_pending_blocks",
    "rows.py:_Arrival.matrix:keep_until": _ROWS + "test_a_block_is_held_until_the_stream_that_asked_for_it_has_read_it",
    "rows.py:_Arrival.matrix:wait": _ROWS + "test_a_block_goes_to_memory_that_nobody_uses_any_more",
    "rows.py:_Arrival.matrix:follow": _ROWS + "test_blocks_are_ready_on_the_current_stream",
    "search/cuvs.py:CuvsIndex._handle:synchronize": _CUVS + "test_layouts_become_dense_rows",
    "search/cuvs.py:CuvsIndex._handle:sync": _CUVS + "test_memory_outlives_a_failed_search",
    "search/device/torch.py:TorchArrays.fetching.fetched:synchronize": "tests/search/test_device.py::"
    "test_what_is_fetched_is_read_once_it_is_there",
    "transfer/ahead.py:_Ring.end:_drain": _ROWS + "test_a_reader_left_early_has_nothing_written_later",
    "transfer/ahead.py:_Ring._drain:stream_synchronize": _ROWS + "test_a_reader_left_early_has_nothing_written_later",
    "transfer/ahead.py:_Ring._free_slot:_wait_for_users": _ROWS + "test_a_block_waits_for_copies_from_its_rows",
    "transfer/ahead.py:_Ring._wait_for_users:wait": _ROWS + "test_a_block_waits_for_copies_from_its_rows",
    "transfer/ahead.py:_Ring._enqueue:follow": _ROWS + "test_rows_come_after_what_the_matrix_waits_for",
    "transfer/ahead.py:_Ring.oldest:finish": _ROWS + "test_rows_come_after_what_the_matrix_waits_for",
    "transfer/ahead.py:_Ring.in_ordinary_memory:follow": _ROWS
    + "test_rows_in_ordinary_memory_come_after_what_the_matrix_waits_for",
    "transfer/ahead.py:_Ring.in_ordinary_memory:finish": _ROWS
    + "test_rows_in_ordinary_memory_come_after_what_the_matrix_waits_for",
    "transfer/ahead.py:_Ring.in_ordinary_memory:_drain": "tests/transfer/test_ahead.py::"
    "test_staging_is_not_written_after_an_error",
    "transfer/base.py:Transfer.result:wait": _LANES + "test_early_return_into_pageable_memory",
    "transfer/base.py:Transfer._end:_finish": _LANES + "test_pinned_memory_is_moved_as_it_lies",
    "transfer/crew.py:Crew.run:wait": "tests/transfer/test_crew.py::test_all_jobs_are_over_when_a_run_returns",
    "transfer/lanes.py:upload:finish": _LANES + "test_pinned_memory_is_moved_as_it_lies",
    "transfer/lanes.py:download:wait": _LANES + "test_download",
    "transfer/lanes.py:_by_the_device.end:synchronize": _LANES + "test_pinned_memory_is_moved_as_it_lies",
    "transfer/lanes.py:_in_background.work:wait": _LANES + "test_early_return_into_pageable_memory",
    "transfer/lanes.py:_in_background.end:wait": _LANES + "test_early_return_into_pageable_memory",
    "transfer/lanes.py:Mark.synchronize:synchronize": _LANES + "test_pinned_memory_is_moved_as_it_lies",
    "transfer/lanes.py:finish:synchronize": _LANES + "test_download_comes_after_its_stream",
    "transfer/lanes.py:_Move.receive_at_once:finish": _MOVES + "test_a_small_matrix_that_the_driver_stages",
    "transfer/lanes.py:_Move.run:follow": _LANES + "test_upload_is_ordered_on_its_stream",
    "transfer/lanes.py:_Move.run:drain": _LANES + "test_nothing_is_under_way_after_an_error",
    "transfer/lanes.py:_Move.enqueue:drain": _LANES + "test_pinned_memory_is_left_alone_after_an_error",
    "transfer/lanes.py:_Lane.__exit__:drain": _MOVES + "test_no_chunk_is_reused_under_a_failed_move",
    "transfer/lanes.py:_Move.drain:stream_synchronize": _MOVES + "test_no_chunk_is_reused_under_a_failed_move",
    "transfer/lanes.py:_Lane._land:finish": _LANES + "test_download_comes_after_its_stream",
    "transfer/lanes.py:_Lane.__exit__:leave": _LANES + "test_an_error_at_any_call",
    "transfer/staging.py:Staging._reserve:wait": _STAGING + "test_a_move_without_a_chunk_sleeps_until_one_comes_back",
    "transfer/staging.py:Staging._reserve:_finish": _STAGING + "test_chunks_that_the_device_reads_are_waited_for",
    "transfer/staging.py:Staging._finish_and_give:synchronize": _LANES + "test_an_arena_of_another_runtime",
    "transfer/staging.py:Staging._finish:synchronize": _STAGING + "test_chunks_that_the_device_reads_are_waited_for",
    "transfer/streams.py:side_stream:follow": _LANES + "test_download_comes_after_its_stream",
    "transfer/streams.py:follow:wait": _LANES + "test_download_comes_after_its_stream",
    "view.py:TensorView._export:make_ready": _VIEWS + "test_export_is_ready_on_the_consumers_stream",
}
#: Removals that change nothing, and why.
EQUIVALENT = {
    "frameworks/jax.py:JaxFramework.empty:block_until_ready": "whoever writes to new memory looks at it first, by the "
    "adapter's `view`, which has the legacy stream wait for an array that is not ready",
    "transfer/lanes.py:_trial.measure:stream_synchronize": "it tells seconds only, and freeing waits for the copies",
}
#: Where to look for a test for a new one.
_TESTS = (
    "tests/simulated/test_adapter.py",
    "tests/exchange",
    "tests/transfer",
    "tests/test_rows.py",
    "tests/test_builder.py",
    "tests/test_device_matrix.py",
    "tests/memory",
    "tests/search/test_cuvs.py",
    "tests/frameworks/test_standins.py",
)


@cache
def mutations() -> dict[str, tuple[Path, ast.expr]]:
    """Every such call by "file:function:call", numbered from the second of a kind in a function on."""
    found: dict[str, tuple[Path, ast.expr]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith(_LEFT_OUT):
            continue
        seen: Counter[str] = Counter()
        for function, call in _calls(ast.parse(file.read_text()), ""):
            key = f"{place}:{function}:{_word(call)}"
            seen[key] += 1
            found[key if seen[key] == 1 else f"{key} {seen[key]}"] = file, call
    return found


def _calls(node: ast.AST, name: str) -> list[tuple[str, ast.expr]]:
    """Calls that may be taken out, each with the function that it stands in."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and _word(child.value) in WAITS:
            found.append((name, child.value))
        elif isinstance(child, ast.expr) and _word(child) == _PASSES_ON:
            found.append((name, child))
        elif isinstance(child, ast.FunctionDef | ast.ClassDef):
            found += _calls(child, f"{name}.{child.name}" if name else child.name)
        else:
            found += _calls(child, name)
    return found


def _word(call: ast.expr) -> str:
    """What is called, without what it is called on."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def noticed_by(name: str, *tests: str) -> str:
    """The first of the tests that fails once the call is gone; empty if none does."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        file, call = mutations()[name]
        (source / file.relative_to(SOURCE)).write_text(_without(file.read_text(), call))
        return next((failed for test in tests if (failed := _first_failure(source, test))), "")


def _without(text: str, call: ast.expr) -> str:
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: call.lineno - 1])) + call.col_offset
    end = sum(map(len, lines[: (call.end_lineno or 0) - 1])) + (call.end_col_offset or 0)
    rest = call.func.value if _word(call) == _PASSES_ON else None  # type: ignore[attr-defined]
    return text[:start] + ("None" if rest is None else ast.unparse(rest)) + text[end:]


def _first_failure(source: Path, test: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", f"pythonpath={source} tests", "-m", "not slow and not gpu and not mutation", test]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    try:
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:  # somebody waits for what never comes
        return f"{test}, for ever"
    text = ran.stdout.decode()
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", text, re.MULTILINE)
    if ran.returncode == 1 and failed:
        return failed[1]
    if ran.returncode > 0:  # not a test that failed, but tests that could not run
        raise RuntimeError(text[-2000:])
    return f"{test}, by signal {-ran.returncode}" if ran.returncode else ""


if __name__ == "__main__":
    for mutation in sys.argv[1:] or sorted(mutations().keys() - NOTICED_BY.keys() - EQUIVALENT.keys()):
        sys.stdout.write(f"{mutation}: {noticed_by(mutation, *_TESTS) or 'NOT NOTICED'}\n")
        sys.stdout.flush()
