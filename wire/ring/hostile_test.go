package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// hostile is a peer that does as it likes: it has the memory and the other end of the socket.
type hostile struct {
	*memory
	sock *os.File
}

// victim makes a Conn whose peer is hostile.
func victim(t testing.TB, side Side) (*Conn, *hostile) {
	t.Helper()
	f, err := NewFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := mapFile(f)
	if err != nil {
		t.Fatal(err)
	}
	x, y, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	u, err := session.UnixConn(x)
	if err != nil {
		t.Fatal(err)
	}
	set := NewSet(Config{Claim: func(context.Context, []byte) (*os.File, error) { return dup(t, f), nil }})
	set.Use(Shared)
	c, err := set.New(u, side, []byte("ticket"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); set.Close(); y.Close(); m.unmap() })
	return c, &hostile{m, y}
}

// store writes a word anywhere into the memory.
func (h *hostile) store(at int, value uint64) {
	at = at % (FileBytes - 8) &^ 7
	// SAFETY: at is within the mapping and aligned; the peer uses atomic operations on the same
	// words, which the compiler cannot see here.
	(*atomic.Uint64)(unsafe.Pointer(&h.mapped[at])).Store(value)
}

// use calls the victim's methods with short deadlines. Whatever the peer does they return, and give
// no more than was asked for.
func use(t *testing.T, c *Conn, op byte, size int) error {
	buf := make([]byte, size)
	soon := time.Now().Add(time.Duration(op%4) * 100 * time.Microsecond)
	switch op % 8 {
	case 0, 1, 2:
		c.SetReadDeadline(soon)
		n, err := c.Read(buf)
		if n > size || n < 0 || n == 0 && size > 0 && err == nil {
			t.Fatalf("read %d of %d bytes, %v", n, size, err)
		}
		return err
	case 3, 4, 5:
		c.SetWriteDeadline(soon)
		n, err := c.Write(buf)
		if n > size || n < 0 || n < size && err == nil {
			t.Fatalf("wrote %d of %d bytes, %v", n, size, err)
		}
		return err
	case 6:
		c.rest()
	case 7:
		c.Use(Transport(size % 3))
	}
	return nil
}

// A peer that writes anything into the memory and onto the socket, at any moment between the calls
// of the other side, hurts only the connection.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{0}, false)
	op := func(kind byte, at uint16, value uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16([]byte{kind}, at), value)
	}
	at := func(d Side, p unsafe.Pointer, m *header) uint16 {
		return uint16(uintptr(p) - uintptr(unsafe.Pointer(m)))
	}
	m := new(header)
	in := &m.directions[Accepted] // what a Conn that dialled reads
	out := &m.directions[Dialled]
	for _, value := range []uint64{1, 2, 3, 64, Bytes, Bytes + 1, 1 << 31, 1<<64 - 1} {
		for _, p := range []unsafe.Pointer{unsafe.Pointer(&in.tail), unsafe.Pointer(&in.toRing),
			unsafe.Pointer(&in.toSocket), unsafe.Pointer(&in.phase)} {
			f.Add(bytes.Join([][]byte{op(0, at(0, unsafe.Pointer(&in.phase), m), 1), op(1, 1, 0),
				op(0, at(0, p, m), value), op(1, 8, 0), op(2, 64, 0), op(2, 64, 0)}, nil), false)
		}
		for _, p := range []unsafe.Pointer{unsafe.Pointer(&out.head), unsafe.Pointer(&out.ready),
			unsafe.Pointer(&out.waits), unsafe.Pointer(&out.gone)} {
			f.Add(bytes.Join([][]byte{op(0, at(0, unsafe.Pointer(&out.ready), m), 1), op(5, 64, 0),
				op(0, at(0, p, m), value), op(5, 2000, 0), op(5, 60000, 0), op(6, 0, 0)}, nil), false)
		}
	}
	f.Fuzz(func(t *testing.T, program []byte, accepted bool) {
		side := Dialled
		if accepted {
			side = Accepted
		}
		c, h := victim(t, side)
		for range 24 {
			if len(program) < 11 {
				return
			}
			kind, where, value := program[0], binary.LittleEndian.Uint16(program[1:]),
				binary.LittleEndian.Uint64(program[3:])
			program = program[11:]
			switch kind % 4 {
			case 0:
				h.store(int(where)%headerBytes, value)
			case 1:
				unix.SendmsgN(int(h.sock.Fd()), make([]byte, where%300), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			default:
				use(t, c, byte(value)+kind, int(where))
			}
		}
	})
}

// A peer that scribbles over the memory while it is being read and written hurts only the
// connection: every call returns.
func TestScribbler(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	broken := 0
	for i := range uint64(200) {
		c, h := victim(t, Side(i%2))
		r, w := rand.New(rand.NewPCG(seed, i)), rand.New(rand.NewPCG(seed+1, i))
		stop := make(chan struct{})
		var scribbler sync.WaitGroup
		scribbler.Go(func() {
			words := []int{0, 512, 520, 528, 536, 544, 640, 768, 772, 776, 1024, 1032, 1040, 1048, 1056, 1152, 1280,
				1284, 1288}
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				at, value := words[r.IntN(len(words))], r.Uint64N(4)
				switch r.IntN(6) {
				case 0:
					value = r.Uint64()
				case 1:
					at = r.IntN(FileBytes)
				case 2:
					value = r.Uint64N(2 * Bytes)
				}
				if at == 0 && n < 1000 {
					continue // or all would be over at once
				}
				h.store(at, value)
				if r.IntN(50) == 0 {
					unix.SendmsgN(int(h.sock.Fd()), make([]byte, r.IntN(64)), nil, nil,
						unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
				}
			}
		})
		for range 100 {
			if err := use(t, c, byte(w.Uint32()), w.IntN(40<<10)); sigma.KindOf(err) == sigma.KindInvalid {
				broken++
				break
			}
		}
		close(stop)
		scribbler.Wait()
		c.Close()
	}
	if broken == 0 {
		t.Error("nothing that was scribbled was noticed")
	}
	t.Logf("%d of 200 connections were ended because the peer broke the rules", broken)
}

// What is no memory of a connection, or could shrink under its reader, is refused.
func TestRefusedFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  int64
		seals int
	}{
		{"no seals", FileBytes, 0},
		{"may shrink", FileBytes, unix.F_SEAL_GROW},
		{"short", FileBytes - 1, unix.F_SEAL_SHRINK},
		{"long", FileBytes + 1, unix.F_SEAL_SHRINK},
		{"empty", 0, unix.F_SEAL_SHRINK},
	} {
		fd, err := unix.MemfdCreate("other", unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "other")
		f.Truncate(c.size)
		unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, c.seals)
		if _, err := mapFile(f); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: got %v, want %v", c.name, err, sigma.KindInvalid)
		}
		f.Close()
	}
	f, err := NewFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(0); err == nil {
		t.Error("the memory can be cut short")
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("the memory can be sealed further")
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm()&0o111 != 0 {
		t.Errorf("the memory can be executed: %v, %v", st.Mode(), err)
	}
}

// The layout is that of docs/reference/ring.md, whose vectors these are.
func TestVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/ring.md")
	if err != nil {
		t.Fatal(err)
	}
	c, h := victim(t, Dialled)
	show := func(what string) {
		t.Helper()
		var lines []string
		for at := 0; at < headerBytes; at += 8 {
			if w := h.mapped[at : at+8]; !bytes.Equal(w, make([]byte, 8)) {
				lines = append(lines, fmt.Sprintf("%03x: %s", at, hex.EncodeToString(w)))
			}
		}
		want := what + "\n\n```text\n" + strings.Join(lines, "\n") + "\n```"
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/reference/ring.md lacks\n%s", want)
		}
	}
	send := func(b string) {
		if _, err := unix.Write(int(h.sock.Fd()), []byte(b)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		buf := make([]byte, 64)
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != want {
			t.Fatalf("got %q, %v, want %q", buf[:n], err, want)
		}
	}
	show("1. Who dialled has mapped the memory:")
	c.Use(Automatic)
	c.Write([]byte("hello"))
	in, out := &h.directions[Accepted], &h.directions[Dialled]
	out.ready.Store(1)
	c.Write([]byte("ring"))
	show("2. It has written `hello` on the socket; then the peer was ready, and it wrote `ring`:")
	if got := string(h.mapped[headerBytes : headerBytes+4]); got != "ring" {
		t.Errorf("got %q in the ring", got)
	}
	out.reached.Store(1)
	out.head.Store(4)
	send("abc")
	in.toRing.Store(3)
	in.phase.Store(1)
	copy(h.mapped[headerBytes+Bytes:], "wxyz")
	in.tail.Store(4)
	send("\x00")
	expect("abc")
	expect("wxyz")
	show("3. The peer has read that, and written `abc` on the socket and `wxyz` in its ring, which was read:")
	in.toSocket.Store(4)
	in.phase.Store(2)
	send("end")
	expect("end")
	c.Use(Socket)
	show("4. The peer has gone back to the socket and written `end`; who dialled has gone back too:")
}

// A direction that was silent for a while goes back to the socket, and its pages to the machine,
// once all in it was read; then it can be promoted again.
func TestRest(t *testing.T) {
	c, h := victim(t, Dialled)
	c.Use(Automatic)
	d := &h.directions[Dialled]
	d.ready.Store(1)
	for round := range uint32(3) {
		if _, err := c.Write([]byte("ring")); err != nil {
			t.Fatal(err)
		}
		at := headerBytes + int(d.tail.Load()) - 4
		if phase := d.phase.Load(); phase != 2*round+1 || string(h.mapped[at:at+4]) != "ring" {
			t.Fatalf("round %d: phase %d, %q in the ring", round, phase, h.mapped[at:at+4])
		}
		c.rest() // it was written to since the last time
		if d.phase.Load() != 2*round+1 {
			t.Error("a busy direction was demoted")
		}
		c.rest()
		if d.phase.Load() != 2*round+2 || h.mapped[at] == 0 {
			t.Errorf("phase %d after a rest, or pages went that nobody had read", d.phase.Load())
		}
		d.head.Store(d.tail.Load())
		d.reached.Store(d.phase.Load())
		if c.rest(); h.mapped[at] != 0 {
			t.Error("the pages are still there")
		}
	}
	if st := c.Stats(); st.Promotions != 3 || st.Demotions != 3 {
		t.Errorf("got %+v", st)
	}
}
