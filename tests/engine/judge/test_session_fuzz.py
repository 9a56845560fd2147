"""The judge's end of the socket against a child that says anything at any time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.engine.judge.sandbox import CandidateFault, Op, SandboxFault, Segment, Session, new_nonce
from rackforge_runtime.runner import frames
from rackforge_runtime.runner.frames import Request


def _session(behaviour: Callable[[socket.socket], None], timeout_s: float = 2.0) -> tuple[Session, threading.Thread]:
    """A session whose other end is a thread of ours. It says hello as this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    status, end = os.pipe()

    def child() -> None:
        with theirs:
            try:
                behaviour(theirs)
            except OSError:
                pass
            finally:
                os.close(end)

    thread = threading.Thread(target=child)
    thread.start()
    try:
        parts = (Segment("i", 4096), Segment("o", 4096), Segment("e", 4096))
        session = Session(ours, *parts, status, None, timeout_s)
    except BaseException:
        thread.join()
        raise
    # This process is no candidate: nothing may be signalled.
    os.close(session._pidfd)
    session._pidfd = -1
    return session, thread


said = threading.Event()


def _says(*replies: bytes) -> Callable[[socket.socket], None]:
    def behaviour(sock: socket.socket) -> None:
        sock.send(frames.pack_reply(0, 0, 63))
        sock.recv(frames.MAX_REQUEST_BYTES)
        for reply in replies:
            sock.send(reply)
        said.set()
        sock.recv(1)

    return behaviour


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_answer_is_a_fault_or_a_reply(answer: bytes) -> None:
    session, thread = _session(_says(answer))
    nonce = new_nonce()
    with pytest.raises(CandidateFault) as caught:
        session.request(Request(Op.GO, nonce), timeout_s=2.0)
    assert caught.value.reason == "channel"
    session.close()
    thread.join()


def test_an_answer_with_a_guessed_nonce_is_refused() -> None:
    session, thread = _session(_says(frames.pack_reply(1234, 0)))
    with pytest.raises(CandidateFault, match="not made"):
        session.request(Request(Op.GO, 99), timeout_s=2.0)
    session.close()
    thread.join()


def test_a_claim_of_more_time_than_passed_is_refused() -> None:
    session, thread = _session(_says(frames.pack_reply(99, 0, 0, 10**18)))
    with pytest.raises(CandidateFault) as caught:
        session.request(Request(Op.GO, 99), timeout_s=2.0)
    assert caught.value.reason == "clock"
    session.close()
    thread.join()


def test_speaking_without_being_asked_is_refused() -> None:
    session, thread = _session(_says(frames.pack_reply(99, 0), b"PASS"))
    said.clear()
    assert session.request(Request(Op.GO, 99), timeout_s=2.0).status == 0
    assert said.wait(5)
    with pytest.raises(CandidateFault, match="without being asked"):
        session.request(Request(Op.GO, 100), timeout_s=0.2)
    session.close()
    thread.join()


def test_silence_ends_at_its_deadline() -> None:
    release = threading.Event()

    def behaviour(sock: socket.socket) -> None:
        sock.send(frames.pack_reply(0, 0, 63))
        release.wait(10)

    session, thread = _session(behaviour)
    with pytest.raises(CandidateFault) as caught:
        session.request(Request(Op.GO, 1), timeout_s=0.1)
    assert caught.value.reason == "hang"
    release.set()
    session.close()
    thread.join()


def test_a_closed_socket_is_an_exit() -> None:
    session, thread = _session(lambda sock: (sock.send(frames.pack_reply(0, 0, 63)), None)[1])
    thread.join()
    with pytest.raises(CandidateFault) as caught:
        session.request(Request(Op.GO, 1), timeout_s=1.0)
    assert caught.value.reason == "exit"
    session.close()


@given(st.binary(max_size=100))
@settings(max_examples=20, deadline=None)
def test_a_wrong_hello_is_our_fault_not_a_verdict(hello: bytes) -> None:
    if len(hello) == frames.REPLY_BYTES and hello[:4] == frames.MAGIC:
        return
    with pytest.raises(SandboxFault):
        _session(lambda sock: (sock.send(hello), None)[1], 0.5)
