"""Calls: the frames of docs/reference/call.md, and both shells as client and server."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import sigmaos
from sigmaos import aio, blocking, calls
from sigmaos.session import Op

PAGE = Path(__file__).parents[3] / "docs/reference/call.md"


def echo(call: sigmaos.Call) -> bytes:
    return call.arg


def fail(call: sigmaos.Call) -> bytes:
    raise sigmaos.NoSpace("full", "/k", "buy more")


def redirect(call: sigmaos.Call) -> bytes:
    raise sigmaos.Redirected("p7")


def mistake(call: sigmaos.Call) -> bytes:
    raise ValueError("a mistake")


def wait(call: sigmaos.Call) -> bytes:
    done = threading.Event()
    call.canceled.tell(done.set)
    done.wait(5)
    return b"late"


def who(call: sigmaos.Call) -> bytes:
    left = -1.0 if call.deadline is None else call.deadline - time.monotonic()
    return f"{call.caller.proc} {left > 50}".encode()


def server() -> sigmaos.CallServer:
    s = sigmaos.CallServer()
    for name, f in {"echo": echo, "fail": fail, "redirect": redirect, "mistake": mistake, "wait": wait,
                    "who": who}.items():
        s.handle(name, f)
    return s


class TestFrames(unittest.TestCase):
    def test_vectors(self) -> None:
        found = re.findall(r"^\| ([\w ]+) \| `([0-9a-f]+)` \|", PAGE.read_text(), re.M)
        vectors = {n.strip(): bytes.fromhex(h) for n, h in found}
        self.assertEqual(set(vectors), {"hello", "name", "call", "reply", "fail", "redirect", "of p7", "credit"})
        c = calls.Connection()
        self.assertEqual(bytes(c.out), vectors["hello"])
        self.assertEqual(calls.frame(calls.NAME, method=1, body=b"kv.KV/Get")[:8], vectors["name"][:8])
        n, kind, flags, method, id = calls.HEAD.unpack_from(vectors["call"])
        self.assertEqual((kind, flags, method), (calls.CALL, calls.FIRST | calls.DEADLINE | calls.TRACE, 1))
        body = vectors["call"][12:]
        c._numbers["kv.KV/Get"], c._next = 1, id - 1
        c.out.clear()
        c.begin("kv.KV/Get", b"hi", int.from_bytes(body[:8], "little") / 1e9)
        untraced = calls.frame(kind, flags & ~calls.TRACE, 1, id, body[:8] + body[33:])
        self.assertEqual(bytes(c.out), untraced)
        got: list[sigmaos.Call] = []
        of_server = calls.Connection(got.append, frozenset(["kv.KV/Get"]))
        of_server.feed(vectors["hello"] + vectors["name"] + vectors["call"])
        self.assertEqual((got[0].arg, got[0].trace, got[0].id), (b"hi", body[8:33], id))
        p = c.pending[id]
        c.feed(vectors["hello"] + vectors["reply"])
        self.assertEqual(bytes(p.reply), b"ho")
        for name, kind_of, owner in (("fail", sigmaos.Busy, ""), ("redirect", sigmaos.Redirected, "p7")):
            n, kind, flags, method, id = calls.HEAD.unpack_from(vectors[name])
            e = calls._failure(flags, vectors[name][12:])
            self.assertIs(type(e), kind_of)
            self.assertEqual(getattr(e, "owner", ""), owner)
            if name == "fail":
                self.assertEqual((e.kind, e.path, e.message, e.hint), (18, "p", "m", "h"))
        self.assertEqual(calls._owner(calls.BULK, vectors["of p7"][12:]), ("p7", b"ho"))

    def test_bad_peers(self) -> None:
        hello = calls.frame(calls.HELLO, body=calls.MAGIC)
        bad = [
            calls.frame(calls.HELLO, body=b"http/1.1 200"),
            hello + calls.frame(12),
            hello + (1 << 30).to_bytes(4, "little") + bytes(8),
            hello + calls.frame(calls.CREDIT, body=(1).to_bytes(4, "little")),
            hello + calls.frame(calls.CALL, call=1),
            b"",
        ]
        for data in bad:
            c = calls.Connection()
            c.feed(data)
            self.assertIsNotNone(c.error)
            self.assertTrue(c.ended.happened)
        for data in (hello + calls.frame(calls.REPLY, call=1), hello + calls.frame(calls.CALL, calls.FIRST, 3, 1)):
            c = calls.Connection(lambda call: None)
            c.feed(data)
            self.assertIsNotNone(c.error)


class TestHostile(unittest.TestCase):
    def setUp(self) -> None:
        self.begun: list[sigmaos.Call] = []
        self.c = calls.Connection(self.begun.append, frozenset(["m"]))
        self.c.feed(calls.frame(calls.HELLO, body=calls.MAGIC) + calls.frame(calls.NAME, body=b"m"))

    def test_answers_that_nobody_reads(self) -> None:
        for id in range(1, 200):
            self.c.feed(calls.frame(calls.CALL, calls.FIRST, 0, id))
            self.c.answer(self.begun[-1], bytes(1 << 20))
            if id < 16:  # it has credit, and was sent
                self.assertNotIn(id, self.c.calls)
        held = sum(len(x[2]) for x in self.c._blocked)
        self.assertLessEqual(held, calls.ANSWERS_MOST + (1 << 20))
        self.assertEqual(len(self.c.calls), len(self.c._blocked))
        waiting = next(iter(self.c.calls))
        self.c.feed(calls.frame(calls.CANCEL, call=waiting))
        self.assertNotIn(waiting, self.c.calls)
        self.c.pull()
        while self.c.calls and self.c.error is None:
            sent = calls.WINDOWS[1] - self.c._credit[1]
            self.c.feed(calls.frame(calls.CREDIT, calls.BULK, body=sent.to_bytes(4, "little")))
            self.c.pull()
        self.assertIsNone(self.c.error)
        self.assertEqual((len(self.c.calls), len(self.c._blocked)), (0, 0))

    def test_pings_that_nobody_reads(self) -> None:
        pings = calls.frame(calls.PING) * 100_000
        for _ in range(calls.OUT_MOST // len(pings) + 1):
            self.c.feed(pings)
        self.assertIsInstance(self.c.error, sigmaos.TooBig)

    def test_credit_of_refused_streams(self) -> None:
        for id in range(1, 50):  # more than the window, if it were not returned
            self.c.feed(calls.frame(calls.CALL, calls.FIRST | calls.STREAM, 0, id))
            total = (1 << 20).to_bytes(4, "little")
            self.c.feed(calls.frame(calls.DATA, calls.FIRST | calls.MORE, 0, id, total + bytes(calls.PIECE)))
        self.assertIsNone(self.c.error)
        self.assertEqual(self.c._held, [0, 0])

    def test_slow(self) -> None:
        with mock.patch("time.monotonic") as clock:
            for first, wait, then, lives in (
                (b"", 11, b"", False),
                (calls.frame(calls.HELLO, body=calls.MAGIC), 3600, b"", True),
                (calls.frame(calls.HELLO, body=calls.MAGIC), 3600, calls.frame(calls.PING)[:3], True),
                (calls.frame(calls.HELLO, body=calls.MAGIC) + b"\0", 31, b"\0", False),
            ):
                clock.return_value = 1000.0
                c = calls.Connection(self.begun.append)
                c.pull()
                if first:
                    c.feed(first)
                c.look()
                clock.return_value += wait
                c.look()
                if then and lives:
                    c.feed(then)
                    c.look()
                self.assertEqual(c.error is None, lives, (first, wait, then))
            c = calls.Connection(self.begun.append)
            c.feed(calls.frame(calls.HELLO, body=calls.MAGIC) + calls.frame(calls.PING))
            for seconds in (0, 20, 20):
                clock.return_value += seconds
                c.back(c.pull()[1:])  # one byte was sent
                c.look()
            self.assertIsNone(c.error)
            clock.return_value += 31
            c.back(c.pull())
            c.look()
            self.assertIsNotNone(c.error)


class TestBlocking(unittest.TestCase):
    def setUp(self) -> None:
        self.server = server()
        self.dialled = 0
        self.client = sigmaos.CallClient(blocking._Shell(), calls.CallCore(self.dial))
        self.addCleanup(self.server.close)
        self.addCleanup(self.client.close)

    def dial(self) -> Op[socket.socket]:
        yield from ()
        self.dialled += 1
        a, b = socket.socketpair()
        self.served = self.server.serve_socket(b, sigmaos.Principal("r", "p1", "m", False))
        return a

    def test_answers(self) -> None:
        c = self.client
        self.assertEqual(c.call("echo", b"hi"), b"hi")
        self.assertEqual(c.call("echo"), b"")
        self.assertEqual(c.call("who"), b"p1 False")
        self.assertEqual(c.call("who", timeout=60), b"p1 True")
        for n in (131072, 131073, 4 << 20):
            data = os.urandom(n)
            self.assertEqual(c.call("echo", data), data)
        for _ in range(30):  # more than all windows
            self.assertEqual(len(c.call("echo", bytes(1 << 20))), 1 << 20)
        for _ in range(200):
            self.assertEqual(len(c.call("echo", bytes(100_000))), 100_000)
        self.assertEqual(self.dialled, 1)

    def test_errors(self) -> None:
        c = self.client
        with self.assertRaises(sigmaos.NoSpace) as e:
            c.call("fail")
        self.assertEqual((e.exception.path, e.exception.message, e.exception.hint), ("/k", "full", "buy more"))
        with self.assertRaises(sigmaos.Redirected) as r:
            c.call("redirect")
        self.assertEqual(r.exception.owner, "p7")
        with self.assertRaises(sigmaos.SigmaError) as m:
            c.call("mistake")
        self.assertIn("a mistake", str(m.exception))
        with self.assertRaises(sigmaos.Unsupported):
            c.call("none")
        with self.assertRaises(sigmaos.TooBig):
            c.call("echo", bytes((4 << 20) + 1))
        with self.assertRaises(sigmaos.Invalid):
            c.call("n" * 257)

    def test_deadline_cancels(self) -> None:
        with self.assertRaises(sigmaos.Timeout):
            self.client.call("wait", timeout=0.1)
        deadline = time.monotonic() + 2
        while self.served.calls:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertEqual(self.client.call("echo", b"x"), b"x")

    def test_lost_and_idempotent(self) -> None:
        def die() -> None:
            time.sleep(0.1)
            self.served.fail(sigmaos.Lost("killed"))

        killer = threading.Thread(target=die)
        self.client.call("echo")
        killer.start()
        with self.assertRaises(sigmaos.Lost):
            self.client.call("wait")
        killer.join()
        self.assertEqual(self.client.call("echo", b"again"), b"again")
        self.assertEqual(self.dialled, 2)

    def test_leaving(self) -> None:
        self.client.call("echo")
        self.served.leave()
        time.sleep(0.05)
        self.assertEqual(self.client.call("echo", b"elsewhere"), b"elsewhere")
        self.assertEqual(self.dialled, 2)

    def test_threads(self) -> None:
        failed: list[int] = []

        def work(k: int) -> None:
            for i in range(100):
                if self.client.call("echo", b"%d.%d" % (k, i)) != b"%d.%d" % (k, i):
                    failed.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
        self.assertEqual((failed, self.dialled), ([], 1))


class TestAio(unittest.TestCase):
    def test_both_sides(self) -> None:
        async def main() -> None:
            s = aio.CallServer()
            canceled: list[bool] = []

            async def echo(call: sigmaos.Call) -> bytes:
                return call.arg

            async def wait(call: sigmaos.Call) -> bytes:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    canceled.append(True)
                    raise
                return b""

            async def fail(call: sigmaos.Call) -> bytes:
                raise sigmaos.NoSpace("full")

            handlers: dict[str, Callable[[sigmaos.Call], object]] = {"echo": echo, "wait": wait, "fail": fail}
            for name, f in handlers.items():
                s.handle(name, f)  # type: ignore[arg-type]

            def dial() -> Op[socket.socket]:
                yield from ()
                a, b = socket.socketpair()
                s.serve_socket(b)
                return a

            async with aio.CallClient(aio._Shell(), calls.CallCore(dial)) as c:
                got = await asyncio.gather(*[c.call("echo", b"%d" % i) for i in range(300)])
                self.assertEqual(got, [b"%d" % i for i in range(300)])
                big = os.urandom(3 << 20)
                self.assertEqual(await asyncio.gather(*[c.call("echo", big)] * 1), [big])
                with self.assertRaises(sigmaos.Timeout):
                    await c.call("wait", timeout=0.1)
                with self.assertRaises(sigmaos.NoSpace):
                    await c.call("fail")
                self.assertEqual(await c.call("echo", b"x", timeout=5), b"x")
                self.assertEqual(canceled, [True])
            s.close()
            await asyncio.sleep(0)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
