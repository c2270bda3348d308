//go:build system

// Package network tests what tests of several machines stand on: that the network of
// internal/netlab cuts, delays, throttles and loses as it is told, that links between machines work
// over it, and that nothing of it is left, however it ends. It needs root and /dev/net/tun.
package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/netlab"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

const waitMax = time.Minute

// victim, in the environment, makes the test program one that is to be killed (TestKilled).
const victim = "SIGMA_NETLAB_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victim) != "" {
		beVictim()
	}
	os.Exit(m.Run())
}

func newLab(t *testing.T, n int) *netlab.Lab {
	t.Helper()
	if err := netlab.Missing(); err != nil {
		t.Skipf("skipped: %v", err)
	}
	l, err := netlab.New(n, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// until waits for a condition that will come true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitMax); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// udp gives each of two machines a socket that is connected to the other's.
func udp(t *testing.T, a, b *netlab.Machine) (x, y net.Conn) {
	t.Helper()
	one := func(m, to *netlab.Machine) (c net.Conn) {
		var err error
		m.Do(func() {
			c, err = net.DialUDP("udp4", &net.UDPAddr{IP: m.Addr.AsSlice(), Port: 7},
				&net.UDPAddr{IP: to.Addr.AsSlice(), Port: 7})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(waitMax))
		return c
	}
	return one(a, b), one(b, a)
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	buf := make([]byte, 100)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != want {
		t.Fatalf("heard %q, %v, want %q", buf[:n], err, want)
	}
}

// TestCut: a direction that is cut drops all, the other and the rest of the network nothing.
func TestCut(t *testing.T) {
	l := newLab(t, 3)
	a, b, c := l.Machine(0), l.Machine(1), l.Machine(2)
	x, y := udp(t, a, b)
	io.WriteString(x, "1")
	hear(t, y, "1")
	l.Set(a, b, netlab.Rule{Cut: true})
	dropped := l.Counts(a, b).Dropped
	io.WriteString(x, "2")
	until(t, "the drop", func() bool { return l.Counts(a, b).Dropped > dropped })
	io.WriteString(y, "3") // the other way
	hear(t, x, "3")
	l.Heal()
	io.WriteString(x, "4")
	hear(t, y, "4") // and 2 never came
	l.Partition(a)
	if l.Set(b, c, netlab.Rule{}); l.Counts(b, c) != (netlab.Counts{}) {
		t.Error("packets where nobody sent any")
	}
	dropped = l.Counts(b, a).Dropped
	io.WriteString(y, "5")
	until(t, "the drop", func() bool { return l.Counts(b, a).Dropped > dropped })
}

// TestLate: packets that are late come in order, not before their time, and are dropped if their
// way is cut meanwhile.
func TestLate(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.Machine(0), l.Machine(1)
	x, y := udp(t, a, b)
	const delay = 50 * time.Millisecond
	l.Set(a, b, netlab.Rule{Delay: delay})
	began := time.Now()
	for i := range 20 {
		io.WriteString(x, strconv.Itoa(i))
	}
	until(t, "all of them", func() bool { c := l.Counts(a, b); return c.Passed+c.Dropped+c.Late >= 20 })
	l.Set(a, b, netlab.Rule{}) // what is under way is not overtaken
	io.WriteString(x, "20")
	for i := range 21 {
		hear(t, y, strconv.Itoa(i))
	}
	if d := time.Since(began); d < delay {
		t.Errorf("they came after %v", d)
	}
	for long := delay; ; long *= 4 { // on a host that stands still it may arrive before its way is cut
		l.Set(a, b, netlab.Rule{Delay: long})
		before := l.Counts(a, b)
		io.WriteString(x, "late")
		l.Set(a, b, netlab.Rule{Cut: true})
		until(t, "the end of its way", func() bool {
			c := l.Counts(a, b)
			return c.Passed+c.Dropped > before.Passed+before.Dropped
		})
		if l.Counts(a, b).Dropped > before.Dropped {
			break
		}
		if long > 10*time.Second {
			t.Fatal("what is late is not dropped when its way is cut")
		}
	}
}

// TestThrottle: a throttled direction passes no more than its rate and drops what its queue cannot
// hold; a lossy one drops about its share. The other direction is not touched.
func TestThrottle(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.Machine(0), l.Machine(1)
	x, y := udp(t, a, b)
	const rate, size, sent = 100_000, 972, 100 // 28 more bytes are headers: 10 ms each
	l.Set(a, b, netlab.Rule{Rate: rate})
	began := time.Now()
	for range sent {
		x.Write(make([]byte, size))
	}
	until(t, "the end of the queue", func() bool {
		c := l.Counts(a, b)
		return c.Late == 0 && c.Passed+c.Dropped >= sent
	})
	c := l.Counts(a, b)
	if d := time.Since(began); c.Dropped == 0 || c.Passed < 10 || d < time.Duration(c.Passed)*10*time.Millisecond {
		t.Errorf("%+v in %v", c, d)
	}
	l.Set(a, b, netlab.Rule{Loss: 0.5})
	for i := range 1000 {
		x.Write(nil)
		if i%100 == 99 {
			// more than the device's queue holds would be lost before the network has them, while
			// its switch is not run
			until(t, "all of them", func() bool {
				n := l.Counts(a, b)
				return n.Passed+n.Dropped >= c.Passed+c.Dropped+uint64(i)+1
			})
		}
	}
	if n := l.Counts(a, b).Dropped - c.Dropped; n < 400 || n > 600 {
		t.Errorf("%d of 1000 were dropped", n)
	}
	if n := l.Counts(b, a).Dropped; n > 0 {
		t.Errorf("%d dropped in the other direction", n)
	}
	io.WriteString(y, "back")
	hear(t, x, "back")
}

// TestLinks: machines meet over a network that is slow and loses packets, TLS and TCP included,
// each from its own address.
func TestLinks(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.Machine(0), l.Machine(1)
	l.Both(a, b, netlab.Rule{Delay: 2 * time.Millisecond, Rate: 4 << 20, Loss: 0.02})
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), waitMax)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	roster := identity.NewRoster()
	var members []identity.Member
	node := func(name sigma.MachineID, m *netlab.Machine, life sigma.Incarnation) *link.Node {
		key := identity.NewKey()
		pub := key.Public().(ed25519.PublicKey)
		der, err := authority.Issue(time.Now(), identity.Subject{Machine: name, Incarnation: life, Epoch: uint64(life)},
			pub)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identity.New(identity.Config{Key: key, Certificate: der,
			Authorities: [][]byte{authority.Certificate()}, Roster: roster})
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, identity.Member{Machine: name, Key: identity.KeyFingerprint(pub),
			Address: m.Addr.String() + ":7700", Incarnation: life})
		n, err := link.New(link.Config{Identity: id, Serve: func(_ context.Context, l *link.Link) {
			io.Copy(l, l)
			l.CloseWrite()
		},
			Connect: func(ctx context.Context, address string) (net.Conn, error) {
				return m.Dial(ctx, "tcp4", address)
			}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n1, n2 := node("m1", a, 2), node("m2", b, 3)
	roster.Set(3, members)
	ln, err := a.Listen(7700)
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() { n1.Listen(ctx, ln) })
	c, err := n2.Dial(ctx, "m1", link.Target{Kind: link.ToService, Name: "x"}, sigma.Principal{Realm: "default",
		Proc: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); got != "10.77.0.1:7700" || !strings.HasPrefix(c.LocalAddr().String(),
		"10.77.0.2:") {
		t.Errorf("from %v to %v", c.LocalAddr(), got)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	all.Go(func() { c.Write(sent); c.CloseWrite() })
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
	if n := l.Counts(a, b); n.Passed == 0 {
		t.Errorf("%+v", n)
	}
}

// TestInside: a machine has two devices and sees no other network, and what runs in it ends with
// the lab.
func TestInside(t *testing.T) {
	l := newLab(t, 2)
	out, err := l.Machine(0).Run("cat", "/proc/self/net/dev")
	if err != nil || strings.Count(out, ":") != 2 || !strings.Contains(out, "machine0:") ||
		!strings.Contains(out, "lo:") {
		t.Errorf("got %s, %v", out, err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := l.Machine(1).Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v", err)
	}
	if err := l.Machine(0).Do(func() {}); err != netlab.ErrClosed {
		t.Errorf("afterwards: %v", err)
	}
}

// beVictim makes a network with a process in it, tells of them, and waits to be killed.
func beVictim() {
	l, err := netlab.New(1, 1)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	cmd := exec.Command("sleep", "1000")
	if err := l.Machine(0).Start(cmd); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(cmd.Process.Pid)
	select {}
}

// Goal: a network whose program is killed leaves no process, and so no namespace and no device.
func TestKilled(t *testing.T) {
	newLab(t, 1) // or the reason to skip
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		t.Fatalf("it said %q", line)
	}
	until(t, "the end of the process in the namespace", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // nobody may wait for orphans in a container
	})
}
