//go:build system

// Package cache runs a cache on a real machine: stock clients through sigma proxy, the clerk, a
// fleet that grows and shrinks, and the guide.
package cache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"

	"sigmaos.dev/apps/cache"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

// start has a fleet of caches with so many members, until the test ends.
func start(ctx context.Context, t *testing.T, s *testenv.System, c *sdk.Client, name string, members int) {
	t.Helper()
	program := s.Install(ctx, t, c, shared.Program(t, "../../cmd/cache"))
	spec := filepath.Join(t.TempDir(), "cache.json")
	text := fmt.Sprintf(`{"name":%q,"program":%q,"args":["--memory","16MiB"],"memory":"64MiB","least":%d,"most":%d,
		"health":{"kind":"call"}}`, name, program, members, members)
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Must(t, "fleet", "apply", "--wait", "60s", spec)
	t.Cleanup(func() { s.Must(t, "fleet", "rm", name) })
}

// proxy runs sigma proxy, and gives its address.
func proxy(ctx context.Context, t *testing.T, s *testenv.System, target string) (address string) {
	t.Helper()
	cmd := s.Command(ctx, "proxy", target)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the proxy said: %s", said.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err, said.String())
	}
	return strings.TrimSpace(line)
}

// tool runs a program of redis-tools.
func tool(ctx context.Context, t *testing.T, address, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is missing: apt-get install redis-tools", name)
	}
	host, port, _ := strings.Cut(address, ":")
	out, err := exec.CommandContext(ctx, path, append([]string{"-h", host, "-p", port}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Goal: Redis's own tools, a Go client of Redis and one of memcached work at a fleet of two
// members, wherever a key is.
func TestStockClients(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	start(ctx, t, s, c, "stock", 2)
	address := proxy(ctx, t, s, "stock")
	t.Run("redis-cli", func(t *testing.T) {
		began := time.Now()
		for _, x := range [][2]string{{"ping", "PONG"}, {"set k v ex 100", "OK"}, {"get k", "v"}, {"ttl none", "-2"},
			{"incrby n 5", "5"},
			{"mset a 1 b 2 c 3", "OK"}, {"mget a b none c", "1\n2\n\n3"}, {"del a b none", "2"},
			{"select 3", "ERR DB index is out of range: there is 0 only"}} {
			if got := strings.TrimSpace(tool(ctx, t, address, "redis-cli", strings.Fields(x[0])...)); got != x[1] {
				t.Errorf("%s: %q, want %q", x[0], got, x[1])
			}
		}
		ttl, err := strconv.Atoi(strings.TrimSpace(tool(ctx, t, address, "redis-cli", "ttl", "k")))
		if err != nil || ttl > 100 || ttl < 100-int(time.Since(began)/time.Second)-1 {
			t.Errorf("ttl k: %d, %v", ttl, err)
		}
		if info := tool(ctx, t, address, "redis-cli", "info"); !strings.Contains(info, "maxmemory_policy:s3-fifo") {
			t.Error(info)
		}
	})
	t.Run("redis-benchmark", func(t *testing.T) {
		for _, args := range [][]string{{"-n", "2000", "-c", "20"},
			{"-n", "4000", "-c", "4", "-P", "16", "-r", "1000"}} {
			out := tool(ctx, t, address, "redis-benchmark", append(args, "-q", "-t", "ping,set,get,incr,mset")...)
			if n := strings.Count(out, "requests per second"); n < 6 || strings.Contains(out, "rror") {
				t.Errorf("redis-benchmark %q said %s", args, out)
			}
		}
	})
	t.Run("go-redis", func(t *testing.T) { goRedis(ctx, t, address) })
	t.Run("gomemcache", func(t *testing.T) { goMemcache(t, address) })
}

func goRedis(ctx context.Context, t *testing.T, address string) {
	r := redis.NewClient(&redis.Options{Addr: address})
	defer r.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(r.FlushAll(ctx).Err())
	for i := range 100 {
		must(r.Set(ctx, fmt.Sprint("key", i), i, time.Minute).Err())
	}
	for i := range 100 {
		n, err := r.Get(ctx, fmt.Sprint("key", i)).Int()
		if must(err); n != i {
			t.Errorf("key%d is %d", i, n)
		}
	}
	if err := r.Get(ctx, "none").Err(); !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
	if ok, err := r.SetNX(ctx, "key1", "x", 0).Result(); ok || err != nil {
		t.Error("SETNX of what is there:", ok, err)
	}
	if old, err := r.GetSet(ctx, "key1", "new").Result(); old != "1" || err != nil {
		t.Error("GETSET:", old, err)
	}
	if old, err := r.GetDel(ctx, "key1").Result(); old != "new" || err != nil {
		t.Error("GETDEL:", old, err)
	}
	if n, err := r.Append(ctx, "key2", "0").Result(); n != 2 || err != nil {
		t.Error("APPEND:", n, err)
	}
	if n, err := r.Incr(ctx, "key2").Result(); n != 21 || err != nil {
		t.Error("INCR:", n, err)
	}
	if d, err := r.PTTL(ctx, "key3").Result(); d <= 0 || d > time.Minute || err != nil {
		t.Error("PTTL:", d, err)
	}
	if ok, err := r.Persist(ctx, "key3").Result(); !ok || err != nil {
		t.Error("PERSIST:", ok, err)
	}
	if n, err := r.Exists(ctx, "key1", "key2", "key3").Result(); n != 2 || err != nil {
		t.Error("EXISTS:", n, err)
	}
	pipe := r.Pipeline()
	for i := range 500 {
		pipe.Set(ctx, fmt.Sprint("piped", i), strings.Repeat("x", i), 0)
		pipe.StrLen(ctx, fmt.Sprint("piped", i))
	}
	all, err := pipe.Exec(ctx)
	must(err)
	for i := 1; i < len(all); i += 2 {
		if n := all[i].(*redis.IntCmd).Val(); n != int64(i/2) {
			t.Errorf("piped%d has %d bytes", i/2, n)
		}
	}
	if values, err := r.MGet(ctx, "key5", "none", "key6").Result(); err != nil || fmt.Sprint(values) != "[5 <nil> 6]" {
		t.Error("MGET:", values, err)
	}
	big := strings.Repeat("b", 1<<20)
	must(r.Set(ctx, "big", big, 0).Err())
	if got, err := r.Get(ctx, "big").Result(); got != big || err != nil {
		t.Errorf("1 MiB: %d bytes, %v", len(got), err)
	}
}

func goMemcache(t *testing.T, address string) {
	m := memcache.New(address)
	defer m.Close()
	m.Timeout = 10 * time.Second
	must := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	must(m.DeleteAll(), nil)
	var keys []string
	for i := range 50 {
		key := fmt.Sprint("mem", i)
		must(m.Set(&memcache.Item{Key: key, Value: []byte(key), Flags: uint32(i), Expiration: 60}), nil)
		keys = append(keys, key)
	}
	items, err := m.GetMulti(append(keys, "none"))
	if err != nil || len(items) != 50 || string(items["mem7"].Value) != "mem7" || items["mem7"].Flags != 7 {
		t.Errorf("%d items, %v", len(items), err)
	}
	_, err = m.Get("none")
	must(err, memcache.ErrCacheMiss)
	must(m.Add(&memcache.Item{Key: "mem1"}), memcache.ErrNotStored)
	must(m.Replace(&memcache.Item{Key: "none"}), memcache.ErrNotStored)
	must(m.Append(&memcache.Item{Key: "mem1", Value: []byte("!")}), nil)
	it, err := m.Get("mem1")
	if must(err, nil); string(it.Value) != "mem1!" {
		t.Errorf("%q", it.Value)
	}
	it.Value = []byte("swapped")
	must(m.CompareAndSwap(it), nil)
	must(m.CompareAndSwap(it), memcache.ErrCASConflict)
	must(m.Set(&memcache.Item{Key: "n", Value: []byte("9")}), nil)
	n, err := m.Increment("n", 5)
	if must(err, nil); n != 14 {
		t.Error(n)
	}
	n, err = m.Decrement("n", 50)
	if must(err, nil); n != 0 {
		t.Error(n)
	}
	must(m.Touch("mem2", 100), nil)
	must(m.Delete("mem2"), nil)
	must(m.Delete("mem2"), memcache.ErrCacheMiss)
	must(m.Ping(), nil)
}

// kept counts the keys of an earlier fill that are there.
func kept(ctx context.Context, t *testing.T, k *cache.Clerk, keys int) (n int) {
	t.Helper()
	for i := range keys {
		key := fmt.Append(nil, "key", i)
		it, found, err := k.Get(ctx, key)
		if err != nil || found && !bytes.Equal(it.Value, key) {
			t.Fatalf("%s is %q: %v", key, it.Value, err)
		}
		if found {
			n++
		}
	}
	return n
}

// Goal: when a cache grows or shrinks in good order, the items of the ranges that move are lost,
// and no others; no operation fails meanwhile.
func TestGrowAndShrink(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	start(ctx, t, s, c, "grows", 2)
	fleets := fleet.NewClient(c)
	defer fleets.Close()
	k := cache.NewClerk(c, "grows")
	defer k.Close()
	const keys = 2000
	for _, size := range []int{3, 2} {
		for i := range keys {
			if err := k.Set(ctx, fmt.Append(nil, "key", i), fmt.Append(nil, "key", i), 0); err != nil {
				t.Fatal(err)
			}
		}
		before := kept(ctx, t, k, keys)
		if _, err := fleets.Scale(ctx, fleet.ScaleArg{Name: "grows", Least: &size, Most: &size}); err != nil {
			t.Fatal(err)
		}
		rangesOf := func() error {
			members, err := k.Stats(ctx)
			kept(ctx, t, k, 100) // clients go on
			if err != nil || len(members) != size {
				return fmt.Errorf("%d members, %v", len(members), err)
			}
			return nil
		}
		testenv.Eventually(t, fmt.Sprintf("there are %d members", size), rangesOf)
		least := keys * 2 / 3 * 9 / 10 // a third moves, give or take
		settled := kept(ctx, t, k, keys)
		t.Logf("%d members: %d of %d keys are there, before %d", size, settled, keys, before)
		if before != keys || settled < least {
			t.Errorf("of %d keys %d are left at %d members, want %d", before, settled, size, least)
		}
	}
	if _, err := k.Count(ctx, []byte("n"), 3); err != nil {
		t.Error(err)
	}
	it, _, err := k.Get(ctx, []byte("n"))
	if stored, serr := k.Swap(ctx, []byte("n"), []byte("4"), it.Version, 0); err != nil || serr != nil || !stored {
		t.Error("swap:", stored, err, serr)
	}
	if err := k.Flush(ctx); err != nil || kept(ctx, t, k, keys) != 0 {
		t.Error("keys are there after a flush:", err)
	}
}

// blocks gives the fenced blocks of a kind in a Markdown file.
func blocks(text, kind string) (out []string) {
	for i, block := range strings.Split(text, "```") {
		if of, code, _ := strings.Cut(block, "\n"); i%2 == 1 && of == kind {
			out = append(out, code)
		}
	}
	return out
}

// Goal: who follows the guide gets what it promises.
func TestGuide(t *testing.T) {
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip("redis-cli is missing: apt-get install redis-tools")
	}
	s := shared.Get(t)
	ctx := testContext(t)
	guide, err := os.ReadFile("../../docs/guide/cache.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../examples/cacheclient/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range blocks(string(guide), "go") {
		if !strings.Contains(string(example), code) {
			t.Errorf("examples/cacheclient has not:\n%s", code)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.BuildGo(t, filepath.Join(dir, "bin"), "../../cmd/cache")
	testenv.BuildGo(t, filepath.Join(dir, "bin"), "../../examples/cacheclient")
	sudo := "#!/bin/sh\nshift\nexec '" + s.Command(ctx).Path + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte(sudo), 0o700); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range blocks(string(guide), "sh") {
		script.WriteString(block)
	}
	// The programs are built, and this is root. Blocks share their shell, as the proxy runs in it.
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
		"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\ngo() { :; }\n"+script.String())
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(s.Command(ctx).Env, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^PONG$`, `(?m)^hello$`, `(?m)^greeting is hello$`, `(?m)^cache made, with 2`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("nothing that the commands print is %s", want)
		}
	}
}
