//go:build system

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigmaos.dev/internal/testenv"
	records "sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// pair is a system of two machines of this host.
type pair struct {
	t       *testing.T
	ctx     context.Context
	m1      *testenv.Machine
	client  *sdk.Client
	program string
}

func newPair(t *testing.T, program string, options ...string) *pair {
	t.Helper()
	p := &pair{t: t, ctx: testContext(t)}
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Unstarted: true})
	p.m1 = c.Machine(0)
	p.m1.Must(t, append([]string{"up", "--detach", "--machines", "2", "--data", c.Data()}, options...)...)
	c.Started(t)
	var err error
	p.client, err = p.m1.Client(p.ctx, sigma.DefaultRealm)
	must(t, err)
	t.Cleanup(p.client.Close)
	p.program = p.m1.Install(p.ctx, t, p.client, testenv.BuildGo(t, t.TempDir(), program))
	return p
}

// start starts a proc on one of the two, which says when it has started.
func (p *pair) start(where sigma.MachineID, args ...string) (id sigma.ProcID) {
	p.t.Helper()
	other := map[sigma.MachineID]string{"m1": "m2", "m2": "m1"}[where]
	p.m1.Must(p.t, "machine", "cordon", other)
	defer p.m1.Must(p.t, "machine", "uncordon", other)
	testenv.Eventually(p.t, "a proc is on "+string(where), func() error { // besched hears of cordons a little later
		ids, err := p.client.Spawn(p.ctx, sigma.Descriptor{Program: p.program, Args: args, Start: sigma.StartedByCall,
			Memory: 32 * sigma.MiB})
		must(p.t, err)
		id = ids[0]
		must(p.t, p.client.WaitStart(p.ctx, id))
		infos, err := p.client.List(p.ctx, true)
		must(p.t, err)
		for _, i := range infos {
			if i.ID == id && i.Machine == where {
				return nil
			}
		}
		must(p.t, p.client.Kill(p.ctx, id))
		_, err = p.client.WaitExit(p.ctx, id)
		must(p.t, err)
		return fmt.Errorf("%s is not", id)
	})
	return id
}

// ended waits for a proc's end and gives what it printed.
func (p *pair) ended(id sigma.ProcID) string {
	p.t.Helper()
	s, err := p.client.WaitExit(p.ctx, id)
	must(p.t, err)
	text, _, err := p.client.Get(p.ctx, "/proc/"+string(id)+"/stdout")
	must(p.t, err)
	if !s.OK() {
		complaint, _, _ := p.client.Get(p.ctx, "/proc/"+string(id)+"/stderr")
		p.t.Errorf("%s ended with %+v: %s", id, s, complaint)
	}
	return string(text)
}

// ready waits until the first machine knows of a connection that was made in advance for a proc of
// the other, and has not begun.
func (p *pair) ready(from sigma.ProcID) {
	p.t.Helper()
	testenv.Eventually(p.t, "connections are made in advance", func() error {
		text, _, err := p.client.Get(p.ctx, "/sys/connections")
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			var c records.Connection
			if err := json.Unmarshal(line, &c); err != nil {
				return err
			}
			if c.Ready && c.From == string(from) {
				return nil
			}
		}
		return fmt.Errorf("none of %s is ready:\n%s", from, text)
	})
}

// wire looks for words in all that goes through a machine's network.
type wire struct {
	mu   sync.Mutex
	seen map[string]bool // mu; by what they are
	over chan struct{}
	done sync.WaitGroup
}

// frameMost is more than a frame has, also one that the network card is to cut.
const frameMost = 128 << 10

func tap(t *testing.T, pid int, words map[string][]byte) *wire {
	t.Helper()
	space, err := netns.GetFromPid(pid)
	must(t, err)
	defer space.Close()
	fd := -1
	opened := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with it
		if err := netns.Set(space); err != nil {
			opened <- err
			return
		}
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			int(uint16(unix.ETH_P_ALL)<<8|uint16(unix.ETH_P_ALL)>>8))
		opened <- err
	}()
	must(t, <-opened)
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	w := &wire{seen: map[string]bool{}, over: make(chan struct{})}
	w.done.Go(func() {
		defer unix.Close(fd)
		b := make([]byte, frameMost)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err == nil {
				for what, word := range words {
					if bytes.Contains(b[:n], word) {
						w.mu.Lock()
						w.seen[what] = true
						w.mu.Unlock()
					}
				}
				continue
			}
			select {
			case <-w.over:
				return
			default:
			}
		}
	})
	t.Cleanup(w.close)
	return w
}

func (w *wire) close() {
	w.mu.Lock()
	select {
	case <-w.over:
	default:
		close(w.over)
	}
	w.mu.Unlock()
	w.done.Wait()
}

// Goal: with --encrypt nothing that procs say to those of another machine, or read of files there,
// can be read on the network: neither by a connection that is dialled, nor by many after one
// another, a call, or a file's bytes. Without it, all can, which is the control; of a file what is
// read, as large writes go by links in any case. Method: words that nothing else has, sent both
// ways, are looked for in every frame of a machine's network.
func TestWire(t *testing.T) {
	t.Parallel()
	whats := []string{"once", "answer", "often", "often answer", "call", "call answer", "file"}
	for _, c := range []struct {
		name    string
		options []string
		clear   bool
	}{{"in the clear", nil, true}, {"encrypted", []string{"--encrypt"}, false}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, "testdata/wire", c.options...)
			seed := fmt.Sprint(time.Now().UnixNano())
			words := map[string][]byte{}
			for _, what := range whats {
				sum := sha256.Sum256([]byte(seed + " " + what))
				words[what] = []byte(hex.EncodeToString(sum[:]))
			}
			w := tap(t, p.m1.PID("keeper"), words)
			p.start("m1", "serve", "/wire", seed)
			talks := p.start("m2", "talk", "/wire", seed)
			testenv.Eventually(t, "it has dialled often", func() error {
				_, err := p.client.Stat(p.ctx, "/wire-often")
				return err
			})
			if c.clear {
				p.ready(talks)
			} else if text, _, err := p.client.Get(p.ctx, "/sys/connections"); err != nil ||
				strings.Contains(string(text), `"ready":true`) {
				t.Errorf("connections are made in advance, though they are to be relayed: %v\n%s", err, text)
			}
			_, err := p.client.Put(p.ctx, "/wire-over", nil, sigma.PutOptions{})
			must(t, err)
			p.ended(talks)
			w.close()
			for _, what := range whats {
				if w.seen[what] != c.clear {
					t.Errorf("the words of %q: seen is %v", what, w.seen[what])
				}
			}
		})
	}
}

// TestRevokeAcross: an endpoint that is taken back on its machine ends the connections that procs
// of another have by it, also by what was made in advance, nobody there dials it or begins one any
// more, and those to another endpoint go on.
func TestRevokeAcross(t *testing.T) {
	t.Parallel()
	p := newPair(t, "../machine/testdata/goprobe")
	p.start("m1", "echo", "/stays")
	control := p.start("m2", "hold", "/stays")
	p.start("m1", "echo", "/revoked")
	text, err := p.client.ReadLink(p.ctx, "/revoked")
	must(t, err)
	e, err := sigma.ParseEndpoint(text)
	must(t, err)
	holder, often := p.start("m2", "hold", "/revoked"), p.start("m2", "dial-often", "/revoked")
	p.ready(often)
	begun := time.Now()
	must(t, p.client.Revoke(p.ctx, e))
	t.Logf("taken back in %v", time.Since(begun))
	if out := p.ended(holder); out != "it ended, after answers: true\n" {
		t.Errorf("who had a connection: %q", out)
	}
	if out := p.ended(often); out != "refused, after dials: true\n" {
		t.Errorf("who dials often: %q", out)
	}
	late, err := p.client.Spawn(p.ctx, sigma.Descriptor{Program: p.program, Args: []string{"dial", text},
		Memory: 32 * sigma.MiB})
	must(t, err)
	if s, err := p.client.WaitExit(p.ctx, late[0]); err != nil || s.OK() {
		t.Errorf("it is dialled again: %+v, %v", s, err)
	}
	must(t, p.client.Kill(p.ctx, control))
	if s, err := p.client.WaitExit(p.ctx, control); err != nil || s.OK() {
		t.Errorf("the connection to another endpoint ended too: %+v, %v", s, err)
	}
}
