"""The core and both shells against a scripted server."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import sigmaos
from sigmaos import aio, blocking
from sigmaos import messages as p
from sigmaos.codec import STR, pack
from sigmaos.session import Session
from tests.scripted import ENDPOINT, Server


class TestBlocking(unittest.TestCase):
    def client(self, server: Server, **kwargs: Any) -> sigmaos.Client:
        session = Session(resettable=True)
        c = blocking._client(blocking._Shell(), session, server.theirs, "")
        self.addCleanup(server.close)
        self.addCleanup(c.close)
        return c

    def test_files(self) -> None:
        s = Server({"/d": None, "/d/f": b"data", "/link": "/d/f", "/d/near": "f", "/loop": "/loop"})
        c = self.client(s)
        self.assertEqual(c.info.principal.realm, "r")
        self.assertEqual(c.get("/link"), b"data")
        self.assertEqual(c.get("/d/near"), b"data")
        self.assertEqual(c.listdir("/d"), ["f", "near"])
        self.assertEqual(c.stat("/link").size, 4)
        self.assertEqual(c.readlink("/link"), "/d/f")
        self.assertEqual(c.get_versioned("/d/f")[1].version, 1)
        c.put("/d/g", "new")
        self.assertEqual(c.get("/d/g"), b"new")
        with self.assertRaises(sigmaos.NotFound) as e:
            c.get("/d/none")
        self.assertEqual((e.exception.path, e.exception.hint), ("/d/none", "look elsewhere"))
        self.assertEqual(str(e.exception), "/d/none: not found: no such name (look elsewhere)")
        with self.assertRaises(sigmaos.TooManyLinks):
            c.get("/loop")
        with c.open("/d/f") as f:
            self.assertEqual(f.read(), "data")
        c.remove("/d/g")
        self.assertFalse(c.exists("/d/g"))
        for bad in ("d", "/d//f", "/d/../f", "/" + "n" * 256, "/\0"):
            with self.assertRaises(sigmaos.Invalid):
                c.get(bad)
        with self.assertRaises(sigmaos.Unsupported):
            c.set_stat("/d/f", size=0)
        self.settled(s)
        self.assertEqual(len(s.fids), 2)  # the root, and /sys/self: no handle is forgotten

    def settled(self, s: Server) -> None:
        """Wait until the server has seen all that was sent."""
        before = -1
        while before != len(s.seen):
            before = len(s.seen)
            time.sleep(0.05)

    def test_large_file_goes_in_pieces(self) -> None:
        data = os.urandom(200_000)
        c = self.client(Server({"/big": data}))
        self.assertEqual(c.get("/big"), data)

    def test_older_server(self) -> None:
        s = Server({"/f": b"x"})
        s.hooks[p.Tversion] = lambda s, tag, m: p.Rversion(p.MESSAGE_MAX, p.SIGMA1)
        self.assertEqual(self.client(s).get("/f"), b"x")

    def test_plain_server_is_refused(self) -> None:
        s = Server()
        s.hooks[p.Tversion] = lambda s, tag, m: p.Rversion(p.MESSAGE_MAX, "9P2000.L")
        with self.assertRaises(sigmaos.Unsupported):
            self.client(s)
        s.close()

    def test_several_messages_in_a_record(self) -> None:
        s = Server({"/f": b"x", "/g": b"y"})
        c = self.client(s)
        held: list[bytes] = []

        def together(s: Server, tag: int, m: p.Message) -> None:
            held.append(p.encode(tag, s.answer(m)))
            if len(held) == 2:
                s.mine.send(held[0] + held[1])

        s.hooks[p.Tget] = together
        got: list[bytes] = []
        threads = [threading.Thread(target=lambda n=n: got.append(c.get(n))) for n in ("/f", "/g")]
        for t in threads:
            t.start()
        for t in threads:
            t.join(5)
        self.assertEqual(sorted(got), [b"x", b"y"])

    def test_timeout_flushes(self) -> None:
        s = Server({"/f": b"x"})
        c = self.client(s)
        s.hooks[p.Tget] = lambda s, tag, m: None
        began = time.monotonic()
        with self.assertRaises(sigmaos.Timeout):
            c.within(0.1).get("/f")
        self.assertLess(time.monotonic() - began, 0.9)
        self.assertIsInstance(s.seen[-1], p.Tflush)
        s.hooks.clear()
        self.assertEqual(c.get("/f"), b"x")

    def test_reply_before_flush_counts(self) -> None:
        s = Server({"/f": b"x"})
        c = self.client(s)
        asked: list[tuple[int, p.Message]] = []
        s.hooks[p.Tget] = lambda s, tag, m: asked.append((tag, m))

        def flush(s: Server, tag: int, m: p.Message) -> p.Message:
            s.send(asked[0][0], s.answer(asked[0][1]))
            return p.Rflush()

        s.hooks[p.Tflush] = flush
        self.assertEqual(c.within(0.1).get("/f"), b"x")

    def test_wrong_replies_end_the_session(self) -> None:
        def to_nobody(s: Server, tag: int, m: p.Message) -> p.Message:
            s.send(tag + 1000, p.Rclunk())
            return p.Rclunk()

        wrong: list[Callable[[Server, int, p.Message], Any]] = [
            lambda s, tag, m: p.Rclunk(),
            to_nobody,
            lambda s, tag, m: s.mine.send(b"\x07\0\0\0\x79"),
            lambda s, tag, m: s.mine.send(p.encode(tag, p.Rclunk())[:-1] + b"\xff"),
            lambda s, tag, m: s.mine.shutdown(socket.SHUT_WR),
        ]
        for hook in wrong:
            s = Server({"/f": b"x"})
            c = self.client(s)
            s.hooks[p.Tget] = hook
            with self.assertRaises(sigmaos.SigmaError):
                c.get("/f")
            with self.assertRaises(sigmaos.Lost) as e:
                c.get("/f")
            self.assertTrue(e.exception.unsent)
            self.assertFalse(c.connected)

    def test_reset_goes_on_and_changes_once(self) -> None:
        s = Server({"/log": b""})
        c = self.client(s)
        c.put("/log", "a", append=True)
        times = [0]

        def die(s: Server, tag: int, m: p.Message) -> p.Message | None:
            times[0] += 1
            answer = s.answer(m)  # it takes effect
            if times[0] == 1:
                s.begin_reset(0xABC)
                return None
            return answer

        s.hooks[p.Tput] = die
        c.put("/log", "b", append=True)
        self.assertEqual(c.get("/log"), b"ab")
        sent = [m for m in s.seen if isinstance(m, p.Twith)][-2:]
        self.assertEqual([m.flags & p.AGAIN for m in sent], [0, p.AGAIN])
        self.assertEqual(sent[0].seq, sent[1].seq)
        self.assertEqual(sent[0].seq, sent[0].done + 1)

    def test_lost_walk_is_walked_again(self) -> None:
        s = Server({"/d": None, "/d/f": b"x"})
        c = self.client(s)
        times = [0]

        def die(s: Server, tag: int, m: p.Message) -> p.Message | None:
            times[0] += 1
            if times[0] == 1:
                s.begin_reset(1)
                return None
            return s.answer(m)

        s.hooks[p.Twalk] = die
        c.remove("/d/f")
        self.assertNotIn("/d/f", s.files)
        self.assertEqual(times[0], 2)

    def test_open_file_is_lost_with_sigmad(self) -> None:
        s = Server({"/f": b"x"})
        c = self.client(s)
        f = c.open_file("/f")
        s.begin_reset(2)
        with self.assertRaises(sigmaos.Lost):
            while True:
                f.pread(1, 0)
        f.close()
        self.assertEqual(c.get("/f"), b"x")

    def test_waiting_goes_on_after_a_reset(self) -> None:
        s = Server({"/f": b"x"})
        c = self.client(s)
        times = [0]

        def watch(s: Server, tag: int, m: p.Message) -> p.Message | None:
            times[0] += 1
            if times[0] == 1:
                s.begin_reset(3)
                return None
            return p.Rwatch(9)

        s.hooks[p.Twatch] = watch
        self.assertEqual(c.watch("/f"), 9)

    def test_endpoints(self) -> None:
        inner = Server({"/x": b"behind"})
        inner2, theirs = inner, inner.theirs
        s = Server({"/svc": ENDPOINT, "/u": None, "/u/a": ENDPOINT})
        dialled: list[int] = []

        def dial(s: Server, tag: int, m: p.Message) -> p.Message | None:
            assert isinstance(m, p.Tcall)
            if m.method != "dial":
                return s.answer(m)
            dialled.append(1)
            s.send(tag, p.Rcall(b""), [theirs.fileno()])
            return None

        s.hooks[p.Tcall] = dial
        c = self.client(s)
        self.assertEqual(c.get("/svc/x"), b"behind")
        self.assertEqual(c.get("/u/~any/x"), b"behind")
        self.assertEqual(c.get("/u/~local/x"), b"behind")
        self.assertEqual(len(dialled), 1)
        with self.assertRaises(sigmaos.NotFound):
            c.get("/u/~any/none")
        with self.assertRaises(sigmaos.Invalid):
            c.get("nothing")
        theirs.close()
        self.addCleanup(inner2.close)

    def test_provider_attaches_with_its_realm(self) -> None:
        inner = Server({"/x": b"object"})
        s = Server({"/s3": ENDPOINT.replace(" r ", " system ")})
        s.system = True

        def dial(s: Server, tag: int, m: p.Message) -> p.Message | None:
            assert isinstance(m, p.Tcall)
            if m.method != "dial":
                return s.answer(m)
            s.send(tag, p.Rcall(b""), [inner.theirs.fileno()])
            return None

        s.hooks[p.Tcall] = dial
        c = self.client(s)
        self.assertEqual(c.get("/s3/x"), b"object")
        self.assertEqual([m.aname for m in inner.seen if isinstance(m, p.Tattach)], ["r"])
        inner.theirs.close()
        self.addCleanup(inner.close)

    def test_dial_gives_a_socket(self) -> None:
        a, b = socket.socketpair()
        s = Server({"/svc": ENDPOINT.replace("tree", "stream")})

        def dial(s: Server, tag: int, m: p.Message) -> p.Message | None:
            assert isinstance(m, p.Tcall)
            if m.method != "dial":
                return s.answer(m)
            s.send(tag, p.Rcall(b""), [b.fileno()])
            return None

        s.hooks[p.Tcall] = dial
        c = self.client(s)
        with c.dial_path("/svc") as sock, a, b:
            a.send(b"hi")
            self.assertEqual(sock.recv(10), b"hi")

    def test_fences(self) -> None:
        s = Server({"/e": b"4 other\n", "/d": None})
        c = self.client(s)
        fence = c.advance_epoch("/e")
        self.assertEqual((fence.name, fence.epoch), ("/e", 5))
        c.fence(fence, "/d")
        c.put("/d/x", "1")
        carried = [sigmaos.Fence(m.fence, m.epoch) for m in s.seen
                   if isinstance(m, p.Twith) and isinstance(m.request, p.Tput)]
        self.assertEqual(carried[-1], fence)
        with self.assertRaises(sigmaos.Stale):
            c.fence(sigmaos.Fence("/e", 4), "/d")
        c.fence(None, "/d")
        c.put("/d/x", "2")
        carried = [sigmaos.Fence(m.fence, m.epoch) for m in s.seen
                   if isinstance(m, p.Twith) and isinstance(m.request, p.Tput)]
        self.assertEqual(carried[-1].name, "")

    def test_lease_is_renewed_and_lost(self) -> None:
        s = Server()
        c = self.client(s)
        lease = c.lease(0.3)
        time.sleep(0.5)
        self.assertFalse(lease.lost)
        renewals = [m for m in s.seen if isinstance(m, p.Tlease) and m.id and m.ttl]
        self.assertGreater(len(renewals), 2)
        s.hooks[p.Tlease] = lambda s, tag, m: p.Rfail(2, "", "", "")
        self.assertTrue(lease.wait_lost(2))
        lease.revoke()

    def test_a_campaign_whose_lease_ends_stands_again(self) -> None:
        s = Server()
        times = [0]

        def put(s: Server, tag: int, m: p.Message) -> p.Message | None:
            times[0] += 1
            return p.Rfail(16, "", "named died", "") if times[0] == 1 else s.answer(m)

        s.hooks[p.Tput] = put
        c = self.client(s)
        with c.campaign("/leader", "me", ttl=0.3) as leadership:
            self.assertEqual(leadership.fence, sigmaos.Fence("/leader.epoch", 1))
            self.assertFalse(leadership.lost)
        self.assertTrue(leadership.lost)

    def test_threads_share_a_client(self) -> None:
        c = self.client(Server({f"/{i}": b"%d" % i for i in range(20)}))
        failed: list[Any] = []

        def work(k: int) -> None:
            for i in range(200):
                n = (i * k) % 20
                if c.get(f"/{n}") != b"%d" % n:
                    failed.append(n)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
        self.assertEqual(failed, [])

    def test_system_calls(self) -> None:
        s = Server()
        c = self.client(s)
        c.kill("p1")
        last = s.seen[-1]
        assert isinstance(last, p.Tcall)
        self.assertEqual((last.method, last.payload), ("kill", pack((STR, "p1"))))
        c.evict("p1", grace=2)
        c.freeze("p1")
        c.thaw("p1")
        c.started()
        c.exited(sigmaos.Status(1))
        c.wait_evict()
        c.wait_start("p1")
        self.assertEqual([m.method for m in s.seen if isinstance(m, p.Tcall)][-7:],
                         ["evict", "freeze", "thaw", "started", "exited", "wait-evict", "wait-start"])

    def test_no_proc(self) -> None:
        with self.assertRaises(sigmaos.Unavailable):
            sigmaos.connect("/nowhere/admin.sock", realm="r")


class TestAio(unittest.TestCase):
    def run_with(self, s: Server, work: Callable[[aio.Client], Any]) -> None:
        async def main() -> None:
            c = await aio._client(aio._Shell(), Session(resettable=True), s.theirs, "")
            async with c:
                await work(c)

        asyncio.run(main())
        s.close()

    def test_files(self) -> None:
        async def work(c: aio.Client) -> None:
            self.assertEqual(await c.get("/link"), b"data")
            await c.put("/d/g", "new")
            self.assertEqual(await c.listdir("/d"), ["f", "g"])
            got = await asyncio.gather(*[c.get("/d/f") for _ in range(100)])
            self.assertEqual(got, [b"data"] * 100)
            with self.assertRaises(sigmaos.NotFound):
                await c.get("/none")
            async with await c.open_file("/d/f") as f:
                self.assertEqual(await f.read(2), b"da")
                self.assertEqual(await f.seek(0, 1), 2)
                self.assertEqual(await f.read(), b"ta")

        self.run_with(Server({"/d": None, "/d/f": b"data", "/link": "/d/f"}), work)

    def test_cancel_flushes(self) -> None:
        s = Server({"/f": b"x"})

        async def work(c: aio.Client) -> None:
            s.hooks[p.Tget] = lambda s, tag, m: None
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(c.get("/f"), 0.1)
            s.hooks.clear()
            self.assertEqual(await c.get("/f"), b"x")
            self.assertTrue(any(isinstance(m, p.Tflush) for m in s.seen))

        self.run_with(s, work)

    def test_a_walk_that_was_given_up_leaves_no_handle(self) -> None:
        s = Server({"/f": b"x"})
        late: list[tuple[int, p.Message]] = []

        async def work(c: aio.Client) -> None:
            s.hooks[p.Twalk] = lambda s, tag, m: late.append((tag, m))
            task = asyncio.create_task(c.stat("/f"))
            await asyncio.sleep(0.1)

            def flush(s: Server, tag: int, m: p.Message) -> p.Message:
                s.send(late[0][0], s.answer(late[0][1]))
                return p.Rflush()

            s.hooks[p.Tflush] = flush
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            s.hooks.clear()
            await c.get("/f")
            await asyncio.sleep(0.05)
            self.assertEqual(len(s.fids), 2)

        self.run_with(s, work)

    def test_reset(self) -> None:
        s = Server({"/log": b""})
        times = [0]

        def die(s: Server, tag: int, m: p.Message) -> p.Message | None:
            times[0] += 1
            answer = s.answer(m)
            if times[0] == 1:
                s.begin_reset(5)
                return None
            return answer

        async def work(c: aio.Client) -> None:
            s.hooks[p.Tput] = die
            await c.put("/log", "b", append=True)
            self.assertEqual(await c.get("/log"), b"b")

        self.run_with(s, work)

    def test_leader(self) -> None:
        async def work(c: aio.Client) -> None:
            async with await c.campaign("/leader", "me", ttl=0.3) as leadership:
                await asyncio.sleep(0.5)
                self.assertFalse(leadership.lost)
            await asyncio.wait_for(leadership.wait_lost(), 1)
            async with await c.lease(0.3) as lease:
                self.assertEqual(lease.id, 7)

        self.run_with(Server(), work)


class TestOpen(unittest.TestCase):
    def test_of_a_proc(self) -> None:
        """In a process of its own, by descriptor 3, plain and by asyncio."""
        code = "import sigmaos\nc = sigmaos.open()\nassert c.get('/f') == b'x'\nc.close()"
        of_aio = "import asyncio\nfrom sigmaos import aio\nasync def m():\n c = await aio.open()\n"
        for source in (code, of_aio + " assert await c.get('/f') == b'x'\n await c.close()\nasyncio.run(m())"):
            s = Server({"/f": b"x"})
            pid = os.fork()
            if pid == 0:
                try:
                    os.dup2(s.theirs.fileno(), 3, inheritable=True)
                    exec(source, {})
                    os._exit(0)
                finally:
                    os._exit(1)
            s.theirs.close()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            s.close()


class TestOutside(unittest.TestCase):
    def test_reconnects(self) -> None:
        """A program outside goes on by another connection when sigmad has died."""
        servers = [Server({"/f": b"x"}), Server({"/f": b"y"})]
        left = list(servers)

        def dial() -> socket.socket:
            if not left:
                raise sigmaos.Unavailable("nobody")
            return left.pop(0).theirs

        c = blocking._client(blocking._Shell(dial), Session(lasting=True), dial(), "realm")
        self.assertEqual(c.get("/f"), b"x")
        servers[0].close()
        deadline = time.monotonic() + 5
        while c.get("/f") != b"y":
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual([m.aname for m in servers[1].seen if isinstance(m, p.Tattach)], ["realm"])
        c.close()
        with self.assertRaises(sigmaos.Lost):
            c.get("/f")
        servers[1].close()


if __name__ == "__main__":
    unittest.main()
