"""The protocol's framing: what is packed comes back, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackforge_runtime.runner import frames
from rackforge_runtime.runner.frames import BadFrame, Request, Spawn, Tensor

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    n = draw(st.integers(0, frames.MAX_DIMS))
    dims = st.lists(I64, min_size=n, max_size=n).map(tuple)
    return Tensor(
        draw(st.integers(0, 1)), draw(st.integers(0, 1)), draw(U64), draw(st.integers(1, 9)), draw(dims), draw(dims)
    )


REQUESTS = st.builds(
    Request, op=st.integers(0, 2**16 - 1), nonce=U64, state=U32, threads=U32,
    inputs=st.lists(tensors(), max_size=4).map(tuple), outputs=st.lists(tensors(), max_size=4).map(tuple),
)  # fmt: skip


@given(REQUESTS)
@settings(max_examples=100, deadline=None)
def test_a_request_comes_back(request: Request) -> None:
    packed = frames.pack_request(request)
    assert frames.unpack_request(packed) == request
    assert len(packed) <= frames.MAX_REQUEST_BYTES


@given(REQUESTS, st.data())
@settings(max_examples=100, deadline=None)
def test_a_request_of_another_length_is_refused(request: Request, data: st.DataObject) -> None:
    packed = frames.pack_request(request)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for wrong in (packed[:cut], packed + b"\0"):
        with pytest.raises(BadFrame):
            frames.unpack_request(wrong)


@given(U64, st.integers(0, 2**16 - 1), I64, U64)
def test_a_reply_comes_back(nonce: int, status: int, code: int, claimed: int) -> None:
    packed = frames.pack_reply(nonce, status, code, claimed)
    assert len(packed) == frames.REPLY_BYTES
    assert frames.unpack_reply(packed) == (nonce, status, code, claimed)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_refused_or_read_never_worse(data: bytes) -> None:
    for read in (frames.unpack_reply, frames.unpack_request, frames.unpack_spawn, frames.unpack_files):
        try:
            read(data)
        except BadFrame:
            continue


@given(st.binary(min_size=frames.REPLY_BYTES, max_size=frames.REPLY_BYTES))
@settings(max_examples=200, deadline=None)
def test_a_reply_needs_its_magic(data: bytes) -> None:
    if data[:6] == frames.MAGIC + b"\1\0":
        frames.unpack_reply(data)
    else:
        with pytest.raises(BadFrame):
            frames.unpack_reply(data)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=64)), max_size=5))
@settings(max_examples=100, deadline=None)
def test_files_come_back(files: list[tuple[str, bytes]]) -> None:
    packed = frames.pack_files(files)
    assert frames.unpack_files(packed) == files
    with pytest.raises(BadFrame):
        frames.unpack_files(packed + b"\0")


def test_a_spawn_comes_back() -> None:
    spawn = Spawn(kind=2, memory=1 << 40, tmp_size=1, file_size=2, cpu_s=3, processes=4, nested=1)
    assert frames.unpack_spawn(frames.pack_spawn(spawn)) == spawn


def test_too_much_does_not_fit() -> None:
    tensor = Tensor(0, 0, 0, 1, (1,), (1,))
    with pytest.raises(ValueError, match="tensors"):
        frames.pack_request(Request(1, 1, inputs=(tensor,) * 33))
    with pytest.raises(ValueError, match="dimensions"):
        frames.pack_request(Request(1, 1, inputs=(Tensor(0, 0, 0, 1, (1,) * 9, (1,) * 9),)))
    with pytest.raises(ValueError, match="fit"):
        frames.pack_request(Request(1, 2**64))
