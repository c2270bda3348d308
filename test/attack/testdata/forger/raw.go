package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	mrand "math/rand/v2"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// raw speaks to sigmad without a client.
func raw(args []string) error {
	name := args[0]
	if name == "huge" {
		_, err := syscall.Write(3, make([]byte, 10<<20))
		fmt.Printf("a record of 10 MiB: %v\n", err)
	}
	own, err := unix.Dup(3)
	if err != nil {
		return err
	}
	conn, err := session.FromFile(os.NewFile(3, "sigmad"))
	if err != nil {
		return err
	}
	r := &rawSession{conn: conn, fd: own}
	switch name {
	case "attach":
		return r.attach()
	case "noise", "zeros", "empty", "size", "short", "types", "replies", "unready":
		return r.malformed(name)
	case "huge":
		err = conn.Send(make([]byte, 200<<10), nil)
		fmt.Printf("a record of 200 KiB: %v\n", err)
		return nil
	case "waits":
		return r.pour(60000, &sigmap.Twatch{Fid: 1, Since: 1 << 60})
	case "requests":
		return r.pour(100_000, &sigmap.Tget{Fid: 1, Names: []string{"held", "secret"}, Count: 60000})
	case "calls":
		return r.pour(60000, &sigmap.Tcall{Fid: 9, Method: sigmap.CallWaitEvict.Name})
	case "versions":
		if err := unix.SetNonblock(own, true); err != nil {
			return err
		}
		return r.sendUnread(20000, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})
	case "fids":
		return r.fids()
	case "fuzz":
		return r.fuzz(args[1], []string{"held", "secret"})
	}
	return fmt.Errorf("no message %s", name)
}

type rawSession struct {
	conn session.Conn
	fd   int // the same socket
}

func (r *rawSession) send(tag uint16, m sigmap.Message) error {
	b, err := sigmap.Encode(nil, tag, m)
	if err == nil {
		err = r.conn.Send(b, nil)
	}
	return err
}

func (r *rawSession) ask(tag uint16, m sigmap.Message) (sigmap.Message, error) {
	if err := r.send(tag, m); err != nil {
		return nil, err
	}
	b, files, err := r.conn.Recv()
	session.CloseFiles(files)
	if err != nil {
		return nil, err
	}
	_, answer, err := sigmap.Decode(b)
	return answer, err
}

// begin starts a session and attaches fid 1.
func (r *rawSession) begin() error {
	if _, err := r.ask(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax,
		Version: sigmap.VersionSigma}); err != nil {
		return err
	}
	m, err := r.ask(1, &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid})
	if _, ok := m.(*sigmap.Rattach); err == nil && !ok {
		err = fmt.Errorf("attach: %T", m)
	}
	return err
}

// attach claims to be others. Its lines are attempts and their control.
func (r *rawSession) attach() error {
	if err := r.begin(); err != nil {
		return err
	}
	fmt.Print("attach as oneself\tcontrol\t\t\t\n")
	for i, a := range []sigmap.Tattach{{Aname: "other"}, {Uname: "root", Aname: "other"},
		{Uname: "root", NUname: 0, Aname: "system"}, {Aname: "system"}, {Uname: "other", Aname: "other", NUname: 0},
		{Aname: "other\x00"}, {Aname: "../other"}, {Aname: "/"}, {Aname: "spare"}} {
		a.Fid, a.Afid = uint32(10+i), sigmap.NoFid
		m, err := r.ask(2, &a)
		if err != nil {
			return err
		}
		result := "blocked"
		if _, ok := m.(*sigmap.Rattach); ok {
			result = "SUCCEEDED"
		}
		fmt.Printf("attach as %q to %q\t%s\t%s\tclaim to be another\tidentity\n", a.Uname, a.Aname, result, m.Type())
	}
	// Another's uname with one's own realm is let through and ignored: who one is stays what the
	// socket says.
	if _, err := r.ask(3, &sigmap.Tattach{Fid: 30, Afid: sigmap.NoFid, Uname: "root"}); err != nil {
		return err
	}
	m, err := r.ask(4, &sigmap.Tget{Fid: 30, Names: []string{"sys", "metrics"}, Count: 100})
	if err != nil {
		return err
	}
	result := "blocked"
	if _, ok := m.(*sigmap.Rget); ok {
		result = "SUCCEEDED"
	}
	fmt.Printf("read the metrics as root\t%s\t%s\tclaim to be another\tidentity\n", result, m.Type())
	return nil
}

func (r *rawSession) malformed(name string) error {
	if name != "unready" {
		if err := r.begin(); err != nil {
			return err
		}
	}
	head := func(size uint32, typ byte, body ...byte) []byte {
		return append(append(binary.LittleEndian.AppendUint32(nil, size), typ, 1, 0), body...)
	}
	for i := range 1000 {
		var b []byte
		switch name {
		case "noise":
			b = make([]byte, 1+i*60)
			rand.Read(b)
		case "zeros":
			b = make([]byte, 1+i)
		case "empty":
			b = nil
		case "size":
			b = head(0xffffffff, 110)
		case "short":
			b = head(7+uint32(i%8), 110, bytes.Repeat([]byte{0xff}, i%8)...)
		case "types":
			b = head(7, byte(i))
		case "replies":
			b = head(7, byte(101+2*(i%30)))
		case "unready":
			b = head(7, 110)
		}
		if err := r.conn.Send(b, nil); err != nil {
			fmt.Println(err)
			return nil
		}
	}
	return nil
}

// stuckMax is how long nothing is taken before pour gives up.
const stuckMax = 300 * time.Millisecond

// pour sends a request n times, with another tag each time, and reads no answer. It ends when the
// other side takes no more, and prints how many it took.
func (r *rawSession) pour(n int, m sigmap.Message) error {
	if err := r.begin(); err != nil {
		return err
	}
	if _, err := r.ask(2, &sigmap.Twalk{Fid: 1, NewFid: 9, Names: []string{"sys", "procs"}}); err != nil {
		return err
	}
	if err := unix.SetNonblock(r.fd, true); err != nil {
		return err
	}
	return r.sendUnread(n, m)
}

// sendUnread is pour before or after a session has begun, on a socket that does not block.
func (r *rawSession) sendUnread(n int, m sigmap.Message) error {
	taken := 0
	for last := time.Now(); taken < n && time.Since(last) < stuckMax; {
		b, err := sigmap.Encode(nil, uint16(10+taken%60000), m)
		if err != nil {
			return err
		}
		switch _, err := unix.Write(r.fd, b); err {
		case nil:
			taken, last = taken+1, time.Now()
		case unix.EAGAIN, unix.EINTR:
			unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLOUT}}, 10)
		default:
			n = 0 // it was ended
		}
	}
	fmt.Printf("%d were taken\n", taken)
	return nil
}

// fuzz sends messages that were right before one thing in them was changed, until the session ends.
// The same seed sends the same.
func (r *rawSession) fuzz(seed string, names []string) error {
	if err := r.begin(); err != nil {
		return err
	}
	go func() {
		for {
			_, files, err := r.conn.Recv()
			if err != nil {
				return
			}
			session.CloseFiles(files)
		}
	}()
	h := fnv.New64()
	h.Write([]byte(seed))
	random := mrand.New(mrand.NewPCG(h.Sum64(), 0))
	right := samples(names)
	sent := 0
	for ; sent < fuzzMax; sent++ {
		m := right[random.IntN(len(right))]
		b, err := sigmap.Encode(nil, uint16(1+sent%60000), m)
		if err != nil {
			return err
		}
		if r.conn.Send(spoil(random, b), nil) != nil {
			break
		}
	}
	fmt.Printf("%d messages\n", sent)
	return nil
}

// fuzzMax bounds the messages of one session.
const fuzzMax = 3000

// samples are a right message of each kind that a client may send.
func samples(names []string) []sigmap.Message {
	dir := names[:1]
	return []sigmap.Message{
		&sigmap.Tattach{Fid: 7, Afid: sigmap.NoFid, Uname: "u", Aname: "a"}, &sigmap.Twalk{Fid: 1, NewFid: 2,
			Names: dir}, &sigmap.Twalk{Fid: 1, NewFid: 3, Names: names},
		&sigmap.Tget{Fid: 1, Names: names, Count: 100}, &sigmap.Tput{Fid: 1, Names: append(dir[:1:1], "x"),
			Data: []byte("text")}, &sigmap.Tlist{Fid: 2, Max: 100},
		&sigmap.Tread{Fid: 3, Count: 100}, &sigmap.Twrite{Fid: 3, Data: []byte("text")},
		&sigmap.Treaddir{Fid: 2, Count: 1000}, &sigmap.Tgetattr{Fid: 2}, &sigmap.Treadlink{Fid: 1},
		&sigmap.Twatch{Fid: 2, Since: 1}, &sigmap.Tflush{OldTag: 3}, &sigmap.Tclunk{Fid: 3},
		&sigmap.Tcall{Fid: 1, Method: "list", Payload: []byte{1, 2, 3, 4}},
		&sigmap.Twalk{Fid: 1, NewFid: 9, Names: []string{"sys", "procs"}}, &sigmap.Tcall{Fid: 9, Method: "spawn",
			Payload: []byte{1, 0, 0, 0, 5, 0, '/', 'b', 'i', 'n', 'x'}},
		&sigmap.Tcall{Fid: 9, Method: "wait", Payload: []byte{3, 0, 'a', 'b', 'c'}},
	}
}

// spoil changes one thing. Three in four times what it changes is in the body and the size is
// right, else the session would end at once.
func spoil(random *mrand.Rand, b []byte) []byte {
	extremes := []uint32{0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x10000, 1 << 31, 1<<31 - 1, 1<<32 - 1}
	body := b[min(7, len(b)):]
	switch random.IntN(8) {
	case 0:
		b[random.IntN(7)] = byte(random.Uint32())
		return b
	case 1: // cut, with the size as it was
		return b[:random.IntN(len(b))]
	case 2: // cut, with the size right
		b = b[:7+random.IntN(len(body)+1)]
	case 3: // more
		more := make([]byte, random.IntN(3000))
		for i := range more {
			more[i] = byte(random.Uint32())
		}
		b = append(b, more...)
	case 4, 5:
		if len(body) > 4 {
			binary.LittleEndian.PutUint32(body[random.IntN(len(body)-3):], extremes[random.IntN(len(extremes))])
		}
	default:
		if len(body) > 0 {
			body[random.IntN(len(body))] ^= 1 << random.IntN(8)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// fids takes more handles than one session may have.
func (r *rawSession) fids() error {
	if err := r.begin(); err != nil {
		return err
	}
	for n := range 70000 {
		m, err := r.ask(5, &sigmap.Twalk{Fid: 1, NewFid: uint32(n + 100)})
		if err != nil {
			return err
		}
		if f, ok := m.(*sigmap.Rfail); ok {
			fmt.Printf("files without end\tblocked\t%d, then %v\ttake handles without end\tsigmad\n", n,
				sigma.Kind(f.Kind))
			return nil
		}
	}
	fmt.Print("files without end\tSUCCEEDED\t\ttake handles without end\tsigmad\n")
	return nil
}
