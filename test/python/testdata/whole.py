"""All that the SDK does against a running system. Says KILL and reads a line where sigmad is to be killed."""

import asyncio
import os
import sys
import threading
import time

import sigmaos
from sigmaos import aio

ADMIN, KV, SERVER, HELLO = sys.argv[1:5]


def step(name):
    print(f"{time.monotonic() - BEGAN:6.2f} {name}", flush=True)


def kill():
    print("KILL", flush=True)
    sys.stdin.readline()


def fails(kind, f, *args, **kwargs):
    try:
        f(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"{f} did not fail with {kind}")


def files(c):
    c.mkdir("/py/a/b", parents=True)
    c.mkdir("/py/a", exist_ok=True)
    fails(sigmaos.Exists, c.mkdir, "/py/a")
    id = c.put("/py/a/f", "one")
    assert c.get("/py/a/f") == b"one"
    data, now = c.get_versioned("/py/a/f")
    assert now.version == id.version and now.path == id.path
    fails(sigmaos.VersionMismatch, c.put, "/py/a/f", "two", if_version=id.version + 7)
    c.put("/py/a/f", "two", if_version=id.version)
    c.put("/py/a/f", "!", append=True)
    assert c.get("/py/a/f", sync=True) == b"two!"
    fails(sigmaos.Exists, c.put, "/py/a/f", must_make=True)
    e = fails(sigmaos.NotFound, c.get, "/py/none")
    assert e.path == "/py/none" and e.kind == 2
    assert fails(sigmaos.NotFound, c.put, "/py/none", must_exist=True)
    st = c.stat("/py/a/f")
    assert (st.size, st.name, st.perm, st.is_dir) == (4, "f", 0o644, False), st
    c.set_stat("/py/a/f", perm=0o600, modified=10**18)
    assert c.stat("/py/a/f").perm == 0o600 and c.stat("/py/a/f").modified == 10**18
    c.symlink("f", "/py/a/link")
    c.symlink("/py/a", "/py/a/b/up")
    assert c.readlink("/py/a/link") == "f" and c.get("/py/a/b/up/link") == b"two!"
    assert c.lstat("/py/a/link").kind == sigmaos.FileKind.SYMLINK
    c.put("/py/a/b/up/link", "by the link")
    assert c.get("/py/a/f") == b"by the link"
    c.symlink("/py/loop", "/py/loop")
    fails(sigmaos.TooManyLinks, c.get, "/py/loop")
    c.rename("/py/a/f", "/py/g")
    assert c.listdir("/py") == ["a", "g", "loop"] and not c.exists("/py/a/f")
    assert [e.kind for e in c.scandir("/py")] == [1, 0, 2]
    fails(sigmaos.DirectoryNotEmpty, c.remove, "/py/a")
    fails(sigmaos.NotADirectory, c.get, "/py/g/x")
    fails(sigmaos.Invalid, c.get, "py")
    big = os.urandom(300_000)
    for dir in ("/py", "/ux/~local/py", "/s3/python"):
        c.mkdir(dir, parents=True, exist_ok=True)
        c.put(dir + "/big", big)
        assert c.get(dir + "/big") == big
        with c.open(dir + "/text", "w") as f:
            f.write("first\nsecond\n")
        with c.open(dir + "/text") as f:
            assert list(f) == ["first\n", "second\n"]
        if dir != "/s3/python":
            with c.open(dir + "/text", "r+b") as f:
                f.seek(6)
                f.write(b"SECOND")
                f.seek(0)
                assert f.read() == b"first\nSECOND\n"
            with c.open(dir + "/text", "a") as f:
                f.write("third\n")
            assert c.get(dir + "/text").endswith(b"SECOND\nthird\n")
        fails(sigmaos.Exists, c.open, dir + "/text", "x")
        assert "big" in c.listdir(dir)
        c.remove_tree(dir + "/big")
    with c.open_file("/py/g", "r+") as raw:
        assert raw.pread(2, 3) == b"th"
    c.remove_tree("/py/a")
    c.remove_tree("/py/a")
    many = [f"/py/{i}" for i in range(700)]
    for name in many[:3]:
        c.put(name)
    fails(sigmaos.Timeout, c.within(0.1).wait_for, "/py/never")
    assert b"sigma" in c.get("/proc/self/status") if c.exists("/proc/self/status") else True


def watching(c):
    c.mkdir("/w")
    version = c.stat("/w").version
    told = []

    def follow():
        for change in c.follow("/w"):
            told.append((change.what, change.name))
            if change.name == "end":
                return

    def wait():
        c.wait_for("/w/x/y")
        told.append("came")

    threads = [threading.Thread(target=follow), threading.Thread(target=wait)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    c.mkdir("/w/x")
    assert c.watch("/w", version) > version
    c.put("/w/x/y")
    threads[1].join(10)
    time.sleep(0.3)
    c.remove_tree("/w/x")
    time.sleep(0.3)
    c.put("/w/end")
    threads[0].join(10)
    assert ("created", "x") in told and ("removed", "x") in told and "came" in told, told


def leases(c):
    lease = c.lease(1.0)
    c.put("/leased", "x", lease=lease.id)
    assert c.stat("/leased").ephemeral
    time.sleep(2.5)  # it is renewed
    assert c.exists("/leased") and not lease.lost
    lease.revoke()
    assert not c.exists("/leased") and lease.lost
    with c.lease(2.0) as lease:
        c.put("/leased", lease=lease.id)
        other = sigmaos.connect(ADMIN, realm="default")
        mine = other.lease(1.0)
        other.put("/gone", lease=mine.id)
        mine._inner._stop.set()  # as if the program stood still
        c.wait_for("/gone")
        deadline = time.monotonic() + 10
        while c.exists("/gone"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        other.close()
        assert c.exists("/leased")
    assert not c.exists("/leased")


def election(c):
    c.mkdir("/e/state", parents=True)
    first = c.campaign("/e/leader", "one", ttl=1.0, fenced=("/e/state",))
    assert c.get("/e/leader") == b"one" and first.fence.epoch == 1, first.fence
    assert first.fence.name == "/e/leader.epoch"
    c.put("/e/state/x", "by one")
    other = sigmaos.connect(ADMIN, realm="default")
    won = []
    t = threading.Thread(target=lambda: won.append(other.campaign("/e/leader", "two", ttl=1.0, fenced=("/e/state",))))
    t.start()
    fails(sigmaos.Timeout, c.within(0.3).campaign, "/e/leader", "three")
    assert not won
    first._inner.lease._stop.set()  # it stands still
    t.join(10)
    assert won and won[0].fence.epoch == 2, won
    other.put("/e/state/x", "by two")
    fails(sigmaos.Stale, c.put, "/e/state/x", "by one again")
    assert c.get("/e/leader") == b"two"
    won[0].resign()
    assert won[0].lost
    again = c.campaign("/e/leader", "one again", fenced=("/e/state",))
    c.put("/e/state/x", "by one, rightly")
    again.resign()
    other.close()


def procs(c):
    (id,) = c.spawn(sigmaos.Descriptor(HELLO, args=["1", "2", "3"]))
    c.wait_start(id)
    status = c.wait_exit(id)
    assert status.ok and status.error is None, status
    assert c.logs(id, "stdout") or c.logs(id, "stderr") == b""
    info = [p for p in c.procs(all=True) if p.id == id]
    assert len(info) == 1 and info[0].state == sigmaos.State.ENDED, info
    (id,) = c.spawn(sigmaos.Descriptor(SERVER, args=["/served"], start=1))
    c.wait_start(id)
    c.freeze(id)
    assert [p.frozen for p in c.procs() if p.id == id] == [True]
    c.thaw(id)
    sock = c.dial_path("/served")
    with sock:
        sock.settimeout(10)
        sock.sendall(b"GET /you HTTP/1.0\r\n\r\n")
        got = b""
        while piece := sock.recv(4096):
            got += piece
    assert b"hello /you, this is " + id.encode() in got, got
    endpoint = sigmaos.Endpoint.parse(c.readlink("/served"))
    with c.join("/members/of", endpoint) as membership:
        assert membership.path == "/members/of/" + id and c.members("/members/of") == [id]
        c.dial_path("/members/of").close()
    assert c.members("/members/of") == []
    c.publish("/members/kept", endpoint)
    c.dial(endpoint).close()
    c.evict(id)
    assert c.wait_exit(id).outcome in (sigmaos.Outcome.OK, sigmaos.Outcome.EVICTED)
    (id,) = c.spawn(sigmaos.Descriptor(KV, args=["/nobody"], start=1))
    c.wait_start(id)
    c.kill(id)
    assert not c.wait_exit(id).ok
    fails(sigmaos.NotFound, c.wait_start, "none")


def calls(c):
    ids = c.spawn(*[sigmaos.Descriptor(KV, args=["/kv"], start=1)] * 2)
    for id in ids:
        c.wait_start(id)
    assert c.members("/kv") == sorted(ids)
    with c.calls("/kv") as kv:
        assert kv.call("kv/Echo", b"hi") == b"hi"
        big = os.urandom(3_000_000)
        assert kv.call("kv/Echo", big) == big
        for _ in range(20):  # more than a window
            assert len(kv.call("kv/Echo", bytes(1_000_000))) == 1_000_000
        e = fails(sigmaos.NoSpace, kv.call, "kv/Fail")
        assert (e.path, e.hint) == ("/k", "buy more") and "it is full" in str(e), e
        fails(sigmaos.Unsupported, kv.call, "kv/None")
        began = time.monotonic()
        fails(sigmaos.Timeout, kv.call, "kv/Slow", timeout=0.3)
        assert time.monotonic() - began < 5
        threads = [threading.Thread(target=kv.call, args=("kv/Echo", b"x" * i)) for i in range(50)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        c.kill(ids[0])
        c.wait_exit(ids[0])
        for _ in range(3):
            assert kv.call("kv/Echo", b"again", idempotent=True) == b"again"
    return ids[1]


async def asynchronous(kv):
    async with await aio.connect(ADMIN, realm="default") as c:
        await c.mkdir("/aio")
        await asyncio.gather(*[c.put(f"/aio/{i}", str(i)) for i in range(50)])
        assert await c.get("/aio/7") == b"7" and len(await c.listdir("/aio")) == 50
        try:
            await asyncio.wait_for(c.wait_for("/aio/never"), 0.2)
            raise AssertionError
        except asyncio.TimeoutError:
            pass
        try:
            await c.get("/aio/none")
            raise AssertionError
        except sigmaos.NotFound:
            pass
        async with await c.open_file("/aio/f", "w") as f:
            await f.write(b"hello")
        async with await c.open_file("/aio/f") as f:
            assert await f.read() == b"hello"
        async with await c.campaign("/aio/leader", "me", ttl=1.0) as leadership:
            await asyncio.sleep(1.5)
            assert not leadership.lost
        assert not await c.exists("/aio/leader")
        async with c.calls("/kv") as k:
            answers = await asyncio.gather(*[k.call("kv/Echo", bytes([i])) for i in range(100)])
            assert answers == [bytes([i]) for i in range(100)]
        (id,) = await c.spawn(sigmaos.Descriptor(SERVER, args=["/served"], start=1))
        await c.wait_start(id)
        r, w = await c.streams("/served")
        w.write(b"GET /async HTTP/1.0\r\n\r\n")
        assert b"hello /async" in await r.read()
        w.close()
        await c.kill(id)
        await c.wait_exit(id)
        seen = []

        async def follow():
            async for change in c.follow("/aio"):
                seen.append(change.name)
                if change.name == "end":
                    return

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        await c.put("/aio/end")
        await asyncio.wait_for(task, 10)


def death(c):
    """sigmad is killed while names change and somebody waits."""
    c.mkdir("/death")
    c.put("/death/log")
    lease = c.lease(8.0)
    c.put("/death/leased", lease=lease.id)
    lead = c.campaign("/death/leader", "me", ttl=8.0)
    (id,) = c.spawn(sigmaos.Descriptor(KV, args=["/death/kv"], start=1))
    c.wait_start(id)
    done, counts, failed = threading.Event(), [0, 0], []

    def change(k):
        n = 0
        try:
            while not done.is_set():
                c.put("/death/log", f"{k}.{n}\n", append=True)
                n += 1
                counts[k] = n
        except Exception as e:
            failed.append(e)

    def wait():
        c.wait_for("/death/after")
        waited.append(True)

    def exits():
        waited.append(c.wait_exit(id))

    waited = []
    threads = [threading.Thread(target=change, args=(k,)) for k in (0, 1)]
    threads += [threading.Thread(target=wait), threading.Thread(target=exits)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    kill()
    before = list(counts)
    deadline = time.monotonic() + 20
    while any(n < before[i] + 5 for i, n in enumerate(counts)) and not failed:
        assert time.monotonic() < deadline, (before, counts)
        time.sleep(0.05)
    done.set()
    c.put("/death/after")
    c.kill(id)
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    assert not failed, failed
    lines = c.get("/death/log").decode().split()
    for k in (0, 1):
        assert [x for x in lines if x.startswith(f"{k}.")] == [f"{k}.{n}" for n in range(counts[k])], lines
    assert len(waited) == 2, waited
    assert c.exists("/death/leased") and not lease.lost and not lead.lost
    lead.resign()
    lease.revoke()
    assert not c.exists("/death/leased")
    assert c.connected
    c.put("/s3/python/after", "x")
    assert c.get("/s3/python/after") == b"x"


BEGAN = time.monotonic()
with sigmaos.connect(ADMIN, realm="default") as client:
    assert client.info.principal.realm == "default"
    for part in (files, watching, leases, election, procs):
        part(client)
        step(part.__name__)
    kv = calls(client)
    step("calls")
    asyncio.run(asynchronous(kv))
    step("asyncio")
    death(client)
    step("death")
    client.kill(kv)
print("DONE", flush=True)
