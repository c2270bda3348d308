package named

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func TestRecords(t *testing.T) {
	for _, n := range []*node{
		{id: 1<<fileNumberBits | 1, kind: sigma.KindDir, perm: 0o777, mtime: 1, version: 1, pos: 1},
		{id: 1<<64 - 1, kind: sigma.KindFile, perm: 0o644, mtime: -1 << 63, version: 1<<64 - 1, pos: 1<<64 - 1,
			lease: 1<<64 - 1, data: bytes.Repeat([]byte{0}, FileMax)},
		{id: 7, kind: sigma.KindSymlink, data: []byte("/x")},
		{id: 7, kind: sigma.KindEndpoint, data: []byte("x")},
	} {
		b := n.encode()
		got, err := decodeNode(b)
		if err != nil || !reflect.DeepEqual(got, n) {
			t.Errorf("%v: %v", n.kind, err)
		}
		if len(b) > len(n.data)+64 {
			t.Errorf("%d bytes around %d of data", len(b)-len(n.data), len(n.data))
		}
		for i := range min(len(b), 64) {
			if _, err := decodeNode(b[:i]); err == nil {
				t.Errorf("%v cut to %d bytes is accepted", n.kind, i)
			}
		}
		if _, err := decodeNode(append(b, 0)); err == nil {
			t.Error("a byte too many is accepted")
		}
	}
	r := realmRecord{number: realmNumberMax, created: 5, claims: 6, nextID: fileNumberMax, seq: 1<<64 - 1,
		removing: true, shares: sigma.SharesMax}
	if got, err := decodeRealm(r.encode()); err != nil || got != r {
		t.Errorf("got %+v, %v", got, err)
	}
	l := leaseRecord{ttl: time.Minute}
	if got, err := decodeLease(l.encode()); err != nil || got != l {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := decodeCounter(encodeCounter(9)); err != nil || got != 9 {
		t.Errorf("got %d, %v", got, err)
	}
}

// Each limit of a realm is stored, also alone.
func TestRealmRecordLimits(t *testing.T) {
	for i := range reflect.TypeFor[sigma.RealmLimits]().NumField() {
		r := realmRecord{number: 1, nextID: 2}
		reflect.ValueOf(&r.limits).Elem().Field(i).SetUint(7)
		if got, err := decodeRealm(r.encode()); err != nil || got != r {
			t.Errorf("%s: got %+v, %v", reflect.TypeFor[sigma.RealmLimits]().Field(i).Name, got.limits, err)
		}
	}
}

// A record of a later version is refused, not guessed at.
func TestUnknownVersion(t *testing.T) {
	for _, b := range [][]byte{(&node{id: 7}).encode(), (&realmRecord{number: 1, nextID: 2}).encode(),
		leaseRecord{ttl: time.Minute}.encode()} {
		b[0]++
		_, err1 := decodeNode(b)
		_, err2 := decodeRealm(b)
		_, err3 := decodeLease(b)
		for _, err := range []error{err1, err2, err3} {
			if err == nil || !strings.Contains(err.Error(), "version 2") {
				t.Errorf("got %v", err)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		key    string
		parent uint64
		name   string
		ok     bool
	}{
		{"0000000000000000/", 0, "", true},
		{"00000000000000ff/a", 255, "a", true},
		{"00000000000000ff/" + strings.Repeat("x", 255), 255, strings.Repeat("x", 255), true},
		{"00000000000000ff/", 0, "", false},
		{"00000000000000ff/a/b", 0, "", false},
		{"00000000000000FF/a", 0, "", false},
		{"ff/a", 0, "", false},
		{"0000000000000000/a", 0, "", false},
		{"+000000000000001/a", 0, "", false},
		{"", 0, "", false},
	} {
		parent, name, ok := parseNodeKey(c.key)
		if ok != c.ok || ok && (parent != c.parent || name != c.name) {
			t.Errorf("%q: got %d %q %v", c.key, parent, name, ok)
		}
		if full := nodeKey("acme", parent, name); ok && full != "t/acme/"+c.key {
			t.Errorf("%q prints as %q", c.key, full)
		}
	}
}

// Whatever a decoder accepts, it prints the same way again or more shortly, and it never panics.
func FuzzRecord(f *testing.F) {
	for _, n := range []*node{{id: 1, kind: sigma.KindDir, perm: 0o755}, {id: 2, data: []byte("text"), lease: 3,
		version: 1 << 40}, {id: 3, kind: sigma.KindSymlink, data: []byte("/a/b")}} {
		f.Add(n.encode(), nodeKey("", 1, "name"))
	}
	f.Add((&realmRecord{number: 1, nextID: 2}).encode(), nodeKey("", 0, ""))
	f.Add(leaseRecord{ttl: time.Minute}.encode(), "")
	f.Add((&client{done: 7, entries: []answered{{seq: 9, code: 2, changed: true,
		reply: reply{id: sigma.FileID{Path: 1 << 41, Version: 5}, lease: 3}}}}).encode(), "")
	f.Add(encodeCounter(3), "00000000000000ff/x")
	f.Fuzz(func(t *testing.T, b []byte, key string) {
		if n, err := decodeNode(b); err == nil {
			again, err := decodeNode(n.encode())
			if err != nil || !reflect.DeepEqual(again, n) {
				t.Errorf("%+v becomes %+v, %v", n, again, err)
			}
		}
		if r, err := decodeRealm(b); err == nil {
			if again, err := decodeRealm(r.encode()); err != nil || again != r {
				t.Errorf("%+v becomes %+v, %v", r, again, err)
			}
		}
		if l, err := decodeLease(b); err == nil {
			if again, err := decodeLease(l.encode()); err != nil || again != l {
				t.Errorf("%+v becomes %+v, %v", l, again, err)
			}
		}
		if c, err := decodeClient(b); err == nil {
			if again, err := decodeClient(c.encode()); err != nil || !reflect.DeepEqual(again, c) {
				t.Errorf("%+v becomes %+v, %v", c, again, err)
			}
		}
		if v, err := decodeCounter(b); err == nil {
			if again, err := decodeCounter(encodeCounter(v)); err != nil || again != v {
				t.Errorf("%d becomes %d, %v", v, again, err)
			}
		}
		if parent, name, ok := parseNodeKey(key); ok {
			if again := strings.TrimPrefix(nodeKey("", parent, name), treePrefix("")); again != key {
				t.Errorf("%q becomes %q", key, again)
			}
		}
	})
}
