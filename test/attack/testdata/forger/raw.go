package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"time"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// raw speaks to sigmad without a client. It prints "answered" with the type of the last answer, or what ended it.
func raw(name string) error {
	if name == "huge" {
		_, err := syscall.Write(3, make([]byte, 10<<20))
		fmt.Printf("a record of 10 MiB: %v\n", err)
	}
	conn, err := session.FromFile(os.NewFile(3, "sigmad"))
	if err != nil {
		return err
	}
	r := &rawSession{conn: conn}
	switch name {
	case "attach":
		return r.attach()
	case "noise", "zeros", "empty", "size", "short", "types", "replies", "unready":
		return r.malformed(name)
	case "huge":
		err = conn.Send(make([]byte, 200<<10), nil)
		fmt.Printf("a record of 200 KiB: %v\n", err)
		return nil
	case "flood":
		return r.flood()
	case "deaf":
		return r.deaf()
	case "fids":
		return r.fids()
	case "versions":
		stop := time.AfterFunc(time.Second, func() { conn.Close() }) // sigmad stops reading, as nobody reads its answers
		defer stop.Stop()
		for range 20000 {
			if r.send(1, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma}) != nil {
				break
			}
		}
		return nil
	}
	return fmt.Errorf("no message %s", name)
}

type rawSession struct {
	conn session.Conn
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
	if _, err := r.ask(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma}); err != nil {
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
	fmt.Print("attach as oneself\tcontrol\t\n")
	for i, a := range []sigmap.Tattach{{Aname: "other"}, {Uname: "root", Aname: "other"}, {Uname: "root", NUname: 0, Aname: "system"}, {Aname: "system"}, {Uname: "other", Aname: "other", NUname: 0},
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
		fmt.Printf("attach as %q to %q\t%s\t%s\n", a.Uname, a.Aname, result, m.Type())
	}
	// Another's uname with one's own realm is let through and ignored: who one is stays what the socket says.
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
	fmt.Printf("read the metrics as root\t%s\t%s\n", result, m.Type())
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

// flood sends more requests than may be in flight, that do not end by themselves.
func (r *rawSession) flood() error {
	if err := r.begin(); err != nil {
		return err
	}
	stop := time.AfterFunc(3*time.Second, func() { r.conn.Close() })
	defer stop.Stop()
	go func() {
		for tag := range 60000 {
			if r.send(uint16(tag+10), &sigmap.Twatch{Fid: 1, Since: 1 << 60}) != nil {
				return
			}
		}
		r.conn.Close()
	}()
	for {
		if _, files, err := r.conn.Recv(); err != nil {
			return nil
		} else {
			session.CloseFiles(files)
		}
	}
}

// deaf asks for much and reads nothing.
func (r *rawSession) deaf() error {
	if err := r.begin(); err != nil {
		return err
	}
	stop := time.AfterFunc(2*time.Second, func() { r.conn.Close() })
	defer stop.Stop()
	for tag := 10; r.send(uint16(tag), &sigmap.Tget{Fid: 1, Names: []string{"held", "secret"}, Count: 60000}) == nil; tag++ {
		if tag > 60000 {
			tag = 10
		}
	}
	return nil
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
			fmt.Printf("%d fids\tblocked\t%v\n", n, sigma.Kind(f.Kind))
			return nil
		}
	}
	fmt.Print("70000 fids\tSUCCEEDED\t\n")
	return nil
}
