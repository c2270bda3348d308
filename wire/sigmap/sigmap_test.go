package sigmap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// same compares what was decoded; empty and missing lists are one on the wire.
func same(a, b any) bool { return normal(a) == normal(b) }

func normal(v any) string {
	if w, ok := v.(*Twith); ok && w.Request != nil {
		return fmt.Sprint(w.Once, w.Fence, w.Sync, w.Stale, w.Request.Type(), normal(w.Request))
	}
	if w, ok := v.(*Rwith); ok && w.Reply != nil {
		return fmt.Sprint(w.Age, w.Reply.Type(), normal(w.Reply))
	}
	return strings.NewReplacer("[]string(nil)", "[]string{}", "[]uint8(nil)", "[]byte{}", "[]uint8{}", "[]byte{}",
		"[]byte(nil)", "[]byte{}").Replace(fmt.Sprintf("%#v", reflect.ValueOf(v).Elem()))
}

// TestRoundTrip encodes and decodes random messages and payloads.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		s := newSampler(seed)
		for i := range 256 {
			m := s.message(Type(i))
			if m == nil {
				continue
			}
			before := normal(m)
			buf, err := Encode([]byte("kept"), 7, m)
			if err != nil {
				t.Fatalf("seed %d: encode %+v: %v", seed, m, err)
			}
			if normal(m) != before {
				t.Errorf("encoding changed %+v", m)
			}
			tag, got, err := Decode(buf[4:])
			if err != nil || tag != 7 || !same(got, m) {
				t.Fatalf("seed %d: got %+v, tag %d, %v, want %+v", seed, got, tag, err, m)
			}
		}
		to, from := payloads(), payloads()
		for name, p := range to {
			s.fill(reflect.ValueOf(p.value).Elem(), false)
			buf, err := Payload(p.code)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, name, err)
			}
			if err := Parse(buf, from[name].code); err != nil {
				t.Fatalf("seed %d: %s: %v", seed, name, err)
			}
			again, err := Payload(from[name].code)
			if err != nil || !bytes.Equal(again, buf) {
				t.Fatalf("seed %d: %s: %v, got %x, want %x", seed, name, err, again, buf)
			}
			if !reflect.DeepEqual(p.value, from[name].value) {
				t.Fatalf("seed %d: %s: got %+v, want %+v", seed, name, from[name].value, p.value)
			}
		}
	}
}

// TestTruncated: a message that lacks bytes at its end, or has more, is an error, never another
// message.
func TestTruncated(t *testing.T) {
	s := newSampler(1)
	for i := range 256 {
		m := s.message(Type(i))
		if m == nil {
			continue
		}
		buf, err := Encode(nil, 1, m)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(buf) {
			short := bytes.Clone(buf[:n])
			if _, _, err := Decode(short); err == nil {
				t.Errorf("%T of %d bytes decoded from %d", m, len(buf), n)
			}
			if n >= 7 {
				short[0], short[1] = byte(n), byte(n>>8)
				if _, got, err := Decode(short); err == nil && m.Type() != typeTfsync {
					t.Errorf("%T of %d bytes decoded from %d as %+v", m, len(buf), n, got)
				}
			}
		}
		long := append(bytes.Clone(buf), 0)
		long[0], long[1] = byte(len(long)), byte(len(long)>>8)
		if _, _, err := Decode(long); err == nil {
			t.Errorf("%T with a byte left over decoded", m)
		}
	}
}

// TestLimits: what does not fit is refused when it is encoded.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for name, m := range map[string]Message{
		"string":    &Rreadlink{Target: long},
		"data":      &Rread{Data: make([]byte, MessageMax)},
		"names":     &Twalk{Names: make([]string, WalkMax+1)},
		"many ids":  &Rwalk{IDs: make([]sigma.FileID, 1<<16)},
		"put kind":  &Tput{Options: sigma.PutOptions{Kind: sigma.KindDevice}},
		"long name": &Tget{Names: []string{long}},
	} {
		if buf, err := Encode(nil, 1, m); err == nil {
			t.Errorf("%s: encoded to %d bytes", name, len(buf))
		}
	}
	if _, err := Encode(nil, 1, &Rread{Data: make([]byte, DataMax)}); err != nil {
		t.Errorf("DataMax: %v", err)
	}
	if _, err := Payload(func(c *Coder) {
		d := make([]byte, DataMax)
		c.Data(&d)
	}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a payload of more than DataMax: %v", err)
	}
	// A count that lies makes no room for what is not there.
	if n := testing.AllocsPerRun(10, func() {
		Parse([]byte{0xff, 0xff, 1, 2, 3}, func(c *Coder) { var v []sigma.ProcInfo; c.ProcInfos(&v) })
	}); n > 6 {
		t.Errorf("%v allocations for a lying count", n)
	}
}

// TestErrorReplies: an error reply keeps what it may tell and always fits.
func TestErrorReplies(t *testing.T) {
	long := strings.Repeat("é", 70000)
	e := &sigma.Error{Kind: sigma.KindBusy, Path: long, Msg: long, Hint: long, Err: errors.New("secret")}
	buf, err := Encode(nil, 1, Fail(e, false))
	if err != nil || len(buf) > 4000 || bytes.Contains(buf, []byte("secret")) {
		t.Errorf("%d bytes, %v", len(buf), err)
	}
	_, m, _ := Decode(buf)
	if got := Err(m); sigma.KindOf(got) != sigma.KindBusy || strings.ContainsRune(sigma.HintOf(got), '\uFFFD') {
		t.Errorf("got %v", got)
	}
	inner := &sigma.Error{Kind: sigma.KindNotFound, Path: "/p", Msg: "words", Hint: "hint"}
	if got := Fail(fmt.Errorf("context: %w", &sigma.Error{Kind: sigma.KindVersion, Err: inner}),
		false); *got.(*Rfail) != (Rfail{sigma.KindVersion, "/p", "words", "hint"}) {
		t.Errorf("got %+v", got)
	}
	if got := Fail(os.ErrPermission, false); got.(*Rfail).Msg != "" {
		t.Errorf("got %+v", got)
	}
	if Err(&Rflush{}) != nil {
		t.Error("Rflush is no error")
	}
}

// TestDirEntries fills a reply and reads it back.
func TestDirEntries(t *testing.T) {
	var data []byte
	var want []DirEntry
	for i := range uint64(1000) {
		e := DirEntry{ID: sigma.FileID{Kind: sigma.FileKind(i % 6), Path: i, Version: 9}, Next: i + 1,
			Name: strings.Repeat("n", int(i%256))}
		more, ok := AppendDirEntry(data, 8000, e)
		if !ok {
			if len(data)+DirEntrySize+len(e.Name) <= 8000 {
				t.Errorf("entry of %d bytes refused at %d", len(e.Name), len(data))
			}
			break
		}
		data, want = more, append(want, e)
	}
	got, err := DecodeDirEntries(data)
	if err != nil || !reflect.DeepEqual(got, want) || len(data) > 8000 {
		t.Errorf("got %d entries of %d bytes, want %d, %v", len(got), len(data), len(want), err)
	}
}

// TestDocument: the number of every message, and every kind of error, is in the protocol's
// document.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash(protocol))
	if err != nil {
		t.Fatal(err)
	}
	row := func(format string, args ...any) {
		t.Helper()
		if re := fmt.Sprintf(format, args...); !regexp.MustCompile("(?m)" + re).Match(text) {
			t.Errorf("protocol.md has no line like %s", re)
		}
	}
	for i := range 256 {
		if m := New(Type(i)); m != nil {
			row(`^\| %d \| `+"`%s`"+` \|`, i, Type(i))
		}
	}
	for k := range sigma.KindLoop + 1 {
		row(`^\| %d \| %s \| %d \|`, uint16(k), k, uint32(k.Errno()))
	}
	for _, name := range []string{CallSpawn.Name, CallWaitStart.Name, CallWaitExit.Name, CallEvict.Name,
		CallKill.Name, CallListProcs.Name, CallStarted.Name, CallExited.Name, CallWaitEvict.Name,
		CallInfo.Name, CallListen.Name, CallAccept.Name, CallDial.Name, CallClose.Name, CallCreateRealm.Name,
		CallRemoveRealm.Name, CallStatus.Name, CallDown.Name} {
		row("`%s`", name)
	}
}
