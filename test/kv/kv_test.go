//go:build system

// Package kv runs stores of keys and values on a real machine: the guide, kills of members and
// balancers, and moves of shards under load.
package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/internal/testenv"
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
	s := shared.Get(t)
	ctx := testContext(t)
	guide, err := os.ReadFile("../../docs/guide/kv.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("../../examples/kv/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range blocks(string(guide), "go") {
		if !strings.Contains(string(program), code) {
			t.Errorf("examples/kv has not:\n%s", code)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	built := testenv.BuildGo(t, filepath.Join(dir, "bin"), "../../examples/kv")
	if err := os.Rename(built, filepath.Join(dir, "bin", "counter")); err != nil {
		t.Fatal(err)
	}
	sigmaProgram := s.Command(ctx).Path
	var said strings.Builder
	for i, block := range blocks(string(guide), "sh") {
		// The programs are built, and this is root.
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
			"go() { :; }\nsudo() { shift; '"+sigmaProgram+"' \"$@\"; }\n"+block)
		cmd.Dir, cmd.Env = dir, s.Command(ctx).Env
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		err := cmd.Run()
		t.Logf("%s\n%s(%v)", block, out.String(), time.Since(began).Round(time.Millisecond))
		if err != nil {
			t.Fatalf("block %d: %v", i+1, err)
		}
		said.WriteString(out.String())
	}
	for _, want := range []string{`(?m)^store orders: 1 group of 3 members, 64 shards$`, `(?m)^paid$`,
		`(?m)^somebody was first$`, `(?m)^counter is 3$`, `(?m)^2 +32 +0 +3/3 `, `(?m)^3$`} {
		if !regexp.MustCompile(want).MatchString(said.String()) {
			t.Errorf("nothing that the commands print is %s", want)
		}
	}
}

// store makes a store that is removed at the end.
func store(t *testing.T, s *testenv.System, c *sdk.Client, name string, args ...string) *kv.Clerk {
	t.Helper()
	s.Must(t, append(append([]string{"kv", "create"}, args...), name)...)
	t.Cleanup(func() { s.Must(t, "kv", "rm", name) })
	k, err := kv.Open(c, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// Goal: every operation of a clerk does what it says, on a real machine.
func TestClerk(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "clerk", "--groups", "2")
	keys := []string{"a", "a\x00b", "\xff", strings.Repeat("k", 1024)}
	for i, key := range keys {
		value := bytes.Repeat([]byte{byte(i)}, []int{0, 1, 1000, 1 << 20}[i])
		version, err := k.Put(ctx, key, value, kv.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, now, err := k.Get(ctx, key)
		if err != nil || now != version || !bytes.Equal(got, value) {
			t.Errorf("%d bytes at %d, %v; want %d at %d", len(got), now, err, len(value), version)
		}
	}
	if all, err := k.Scan(ctx, "", 100); err != nil || len(all) != 4 || all[0].Key != "a" || all[3].Key != "\xff" {
		t.Error(len(all), err)
	}
	if all, err := k.GetMany(ctx, append(keys, "none")...); err != nil || len(all) != 4 {
		t.Error(len(all), err)
	}
	shard := fmt.Sprint("/kv/clerk/keys/", kv.Shard("by-path", 64))
	if got := s.Must(t, "ls", "/kv/clerk/keys"); len(strings.Fields(got)) != 64 {
		t.Errorf("the tree has %q", got)
	}
	if _, err := c.Put(ctx, shard+"/by-path", []byte("hello"), sigma.PutOptions{Perm: 0o644}); err != nil {
		t.Error(err)
	}
	if got, _, err := k.Get(ctx, "by-path"); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if got := s.Must(t, "cat", shard+"/by-path"); got != "hello" {
		t.Errorf("cat prints %q", got)
	}
	if err := c.Remove(ctx, shard+"/by-path"); err != nil {
		t.Error(err)
	}
	for want, err := range map[sigma.Kind]error{
		sigma.KindTooBig:   put(ctx, k, strings.Repeat("k", 1025), nil),
		sigma.KindInvalid:  put(ctx, k, "", nil),
		sigma.KindNotFound: k.Delete(ctx, "none"),
		sigma.KindVersion:  k.DeleteIf(ctx, "a", 999),
	} {
		if sigma.KindOf(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if err := put(ctx, k, "k", make([]byte, 1<<20+1)); sigma.KindOf(err) != sigma.KindTooBig {
		t.Error(err)
	}
	if _, err := k.Put(ctx, "short", nil, kv.Options{TTL: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the key expires", func() error {
		if _, _, err := k.Get(ctx, "short"); sigma.KindOf(err) != sigma.KindNotFound {
			return errors.New("it is there")
		}
		return nil
	})
}

func put(ctx context.Context, k *kv.Clerk, key string, value []byte) error {
	_, err := k.Put(ctx, key, value, kv.Options{})
	return err
}

// load increases counters by several clients, each its own, until stop, and checks that each
// reads what it wrote.
type load struct {
	all  sync.WaitGroup
	stop context.CancelFunc
	ops  atomic.Int64

	mu      sync.Mutex
	longest time.Duration // mu; that one write and its read took
}

func begin(t *testing.T, ctx context.Context, k *kv.Clerk, clients int) *load {
	running, stop := context.WithCancel(ctx)
	l := &load{stop: stop}
	for i := range clients {
		l.all.Go(func() {
			key, last := fmt.Sprint("client-", i), uint64(0)
			for n := 0; running.Err() == nil; n++ {
				began := time.Now()
				version, err := k.PutIf(ctx, key, last, []byte(fmt.Sprint(n)), kv.Options{})
				if err != nil {
					t.Errorf("client %d, write %d: %v", i, n, err)
					return
				}
				value, now, err := k.Get(ctx, key)
				if err != nil || now != version || string(value) != fmt.Sprint(n) {
					t.Errorf("client %d wrote %d at %d and read %s at %d, %v", i, n, version, value, now, err)
					return
				}
				l.mu.Lock()
				l.longest = max(l.longest, time.Since(began))
				l.mu.Unlock()
				last = version
				l.ops.Add(2)
			}
		})
	}
	return l
}

func (l *load) end(t *testing.T, what string) {
	t.Helper()
	l.stop()
	l.all.Wait()
	t.Logf("%s: %d operations, the longest pair took %v", what, l.ops.Load(), l.longest)
	if l.ops.Load() == 0 {
		t.Error("nothing was done")
	}
}

// Goal: no write is lost, and none is refused, while a store grows and shrinks, shards move and
// balancers are killed; a watch sees all changes of a key in order.
func TestMoves(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "moves", "--shards", "8")
	watching, seen := make(chan struct{}), make(chan error, 1)
	watched, unwatch := context.WithCancel(ctx)
	go func() {
		n := 0
		for e, err := range k.Watch(watched, "client-0", func() { close(watching) }) {
			if err != nil {
				seen <- err
				return
			}
			if string(e.Value) != fmt.Sprint(n) {
				seen <- fmt.Errorf("change %d is %s", n, e.Value)
				return
			}
			n++
		}
	}()
	<-watching
	l := begin(t, ctx, k, 4)
	killLeader(t, c, "moves")
	s.Must(t, "kv", "scale", "moves", "3")
	killLeader(t, c, "moves")
	s.Must(t, "kv", "move", "moves", "0", "3")
	s.Must(t, "kv", "scale", "moves", "1")
	l.end(t, "scale to 3 and back")
	unwatch()
	if err := <-seen; sigma.KindOf(err) != sigma.KindCanceled {
		t.Error(err)
	}
}

// killLeader kills the balancer that leads.
func killLeader(t *testing.T, c *sdk.Client, name string) {
	t.Helper()
	testenv.Eventually(t, "a balancer is killed", func() error {
		proc, _, err := c.Get(t.Context(), "/kv/"+name+"/leader")
		if err == nil {
			err = c.Kill(t.Context(), sigma.ProcID(proc))
		}
		return err
	})
}

// Goal: a group of three goes on when any of its members is killed, and loses no write.
func TestMembersKilled(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "three", "--replicas", "3")
	l := begin(t, ctx, k, 4)
	for range 3 {
		var st calls.Member
		testenv.Eventually(t, "the group has a leader", func() (err error) {
			st, err = k.Group(ctx, 1)
			return err
		})
		if err := c.Kill(ctx, sigma.ProcID(st.Leader)); err != nil {
			t.Fatal(err)
		}
		// While the killed member counts as one, the death of another takes the majority.
		testenv.Eventually(t, "another member has the place of the killed one", func() error {
			now, err := k.Group(ctx, 1)
			if err == nil && (slices.Contains(now.Members, st.Leader) || len(now.Members) != 3) {
				err = fmt.Errorf("%+v", now.Members)
			}
			return err
		})
	}
	l.end(t, "three leaders killed")
}
