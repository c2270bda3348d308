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
