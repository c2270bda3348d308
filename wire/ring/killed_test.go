package ring

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/wire/session"
)

// progress is what a peer in another process says of itself, in memory that outlives it.
type progress struct {
	written  atomic.Uint64 // messages that left its hands: Write has returned, and Flush
	received atomic.Uint64
	wrong    atomic.Uint32 // it got something that nobody sent in this place
}

const (
	peerEnv = "SIGMA_RING_PEER" // its seed
	// What the peer is born with, from 3 on: its socket, the connection's memory, its meter,
	// progress.
	peerSocket, peerMemory, peerMeter, peerProgress = 3, 4, 5, 6
)

func mapProgress(t testing.TB, f *os.File) *progress {
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	// SAFETY: b is a page of its own, and progress is made of integers only.
	return (*progress)(unsafe.Pointer(unsafe.SliceData(b)))
}

// asPeer is the other process of TestKilled: it writes and reads until it is killed, and switches
// at random.
func asPeer(t *testing.T, seed uint64) {
	file := func(fd uintptr) *os.File { return os.NewFile(fd, "passed") }
	p, memory, meter := mapProgress(t, file(peerProgress)), file(peerMemory), file(peerMeter)
	set := NewSet(Config{
		Claim: func(context.Context, []byte) (*os.File, error) { return dup(t, memory), nil },
		Meter: func(context.Context) (*os.File, error) { return dup(t, meter), nil },
	})
	unix.SetNonblock(peerSocket, true)
	c, err := set.New(FileStream(os.NewFile(peerSocket, "socket")), Accepted, []byte("ticket"), nil)
	if err != nil {
		t.Fatal(err)
	}
	random := func(i uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, i)) }
	go meddle(random(1), nil, c)
	go func() {
		r := random(2)
		for i := 0; ; {
			n := 1 + r.IntN(20)
			if _, err := writeFrom(c, r, i, i+n); err != nil || c.Flush() != nil {
				return
			}
			i += n
			p.written.Store(uint64(i))
		}
	}()
	readAll(t, c, random(3), func(n int) { p.received.Store(uint64(n)) })
	if t.Failed() {
		p.wrong.Store(1)
	}
	select {} // until it is killed
}

// Real peers are killed with a connection in whatever state, while both sides switch transports and
// batching at random: of each direction a beginning has come, in order, of which all that the dead
// had written and flushed is part. Its meter tells what it had counted.
func TestKilled(t *testing.T) {
	if seed, err := strconv.ParseUint(os.Getenv(peerEnv), 10, 64); err == nil {
		asPeer(t, seed)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var total, killed int
	var switched uint64
	for i := uint64(0); total < 2*messages(t); i++ {
		n, st := killOne(t, seed+i*100)
		total += n
		killed++
		switched += st.Promotions + st.Demotions
		if t.Failed() {
			t.Fatalf("peer %d of seed %d", i, seed)
		}
	}
	t.Logf("%d messages with %d peers that were killed, %d switches on this side", total, killed, switched)
	if switched == 0 {
		t.Error("nothing was switched")
	}
}

// killOne has one peer, kills it, and returns how many messages have arrived on both sides.
func killOne(t *testing.T, seed uint64) (total int, st Stats) {
	random := func(i uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, i)) }
	ours, theirs, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := NewFile()
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	meter, err := NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	said, err := newMemory("progress", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	p := mapProgress(t, said)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), peerEnv+"="+strconv.FormatUint(seed+50, 10))
	cmd.ExtraFiles = []*os.File{theirs, memory, meter, said}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	set := NewSet(Config{Claim: func(context.Context, []byte) (*os.File, error) { return dup(t, memory), nil }})
	defer set.Close()
	c, err := set.New(FileStream(ours), Dialled, []byte("ticket"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	stop := make(chan struct{})
	var meddler, ends sync.WaitGroup
	meddler.Go(func() { meddle(random(1), stop, c) })
	var sent atomic.Uint64
	ends.Go(func() {
		r := random(2)
		for i := 0; ; i++ {
			sent.Store(uint64(i + 1)) // begun
			if _, err := writeFrom(c, r, i, i+1); err != nil {
				return
			}
		}
	})
	r := random(3)
	until := r.IntN(8000)
	if until < 200 { // before it has begun
		cmd.Process.Kill()
	}
	var once sync.Once
	got, err := readAll(t, c, r, func(n int) {
		if n >= until {
			once.Do(func() { cmd.Process.Kill() })
		}
	})
	if err == nil || err == io.ErrNoProgress {
		t.Errorf("the end of a dead peer is %v", err)
	}
	ends.Wait()
	close(stop)
	meddler.Wait()
	cmd.Wait()
	if w := p.written.Load(); uint64(got) < w {
		t.Errorf("%d messages came, the peer had written %d", got, w)
	}
	if n := p.received.Load(); n > sent.Load() || p.wrong.Load() != 0 {
		t.Errorf("the peer got %d messages, %d were sent; wrong: %d", n, sent.Load(), p.wrong.Load())
	}
	all, open, err := ReadMeter(meter)
	if err != nil || len(open) > 1 || all.Writes > 0 && all.Writes+1 < p.written.Load() {
		t.Errorf("the meter says %+v, %+v, %v, with %d messages written", all, open, err, p.written.Load())
	}
	return got + int(p.received.Load()), c.Stats()
}
