package treeserver_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// record is messages with tags from first on, one after another.
func record(t testing.TB, first uint16, ms ...sigmap.Message) (out []byte) {
	t.Helper()
	for i, m := range ms {
		out = append(out, encode(t, first+uint16(i), m)...)
	}
	return out
}

// recvAll receives count replies, and says in how many records they came.
func (r *raw) recvAll(count int) (got map[uint16]sigmap.Message, order []uint16, records int) {
	r.Helper()
	got = map[uint16]sigmap.Message{}
	for len(got) < count {
		buf, _, err := r.conn.Recv()
		if err != nil {
			r.Fatalf("recv: %v (Serve: %v)", err, r.err)
		}
		for records++; len(buf) > 0; {
			msg, rest, err := sigmap.Cut(buf)
			if err != nil {
				r.Fatal(err)
			}
			tag, m, err := sigmap.Decode(msg)
			if err != nil {
				r.Fatal(err)
			}
			got[tag], order, buf = m, append(order, tag), rest
		}
	}
	return got, order, records
}

// TestSeveral: requests of one record are answered like those of many; what the server knows at
// once is answered in one record.
func TestSeveral(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: recalling{}}).start(sigmap.VersionSeveral)
	var gets []sigmap.Message
	for range 20 {
		gets = append(gets, &sigmap.Tget{Fid: 1, Names: []string{"known"}, Count: 9})
	}
	if err := r.conn.Send(record(t, 100, gets...), nil); err != nil {
		t.Fatal(err)
	}
	got, order, records := r.recvAll(len(gets))
	for tag, m := range got {
		if g, ok := m.(*sigmap.Rget); !ok || string(g.Data) != "recalled" {
			t.Errorf("tag %d: got %+v", tag, m)
		}
	}
	if records != 1 || !slices.IsSorted(order) {
		t.Errorf("%d answers came in %d records, in order %v", len(got), records, order)
	}

	mixed := []sigmap.Message{&sigmap.Tget{Fid: 1, Names: []string{"known"}, Count: 9},
		&sigmap.Tget{Fid: 1, Names: []string{"other"}, Count: 20}, &sigmap.Tgetattr{Fid: 99},
		&sigmap.Tflush{OldTag: 999}}
	if err := r.conn.Send(record(t, 200, mixed...), nil); err != nil {
		t.Fatal(err)
	}
	got, _, _ = r.recvAll(len(mixed))
	if g, ok := got[201].(*sigmap.Rget); !ok || string(g.Data) != "asked other" {
		t.Errorf("got %+v", got[201])
	}
	if _, ok := got[202].(*sigmap.Rfail); !ok {
		t.Errorf("got %+v", got[202])
	}
}

// TestSeveralFlush: a flush in the same record as its request, and another flush of that, are
// answered after it.
func TestSeveralFlush(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSeveral)
	for first := uint16(10); first < 1000; first += 10 {
		ms := []sigmap.Message{&sigmap.Twatch{Fid: 1, Since: 1 << 63}, &sigmap.Tflush{OldTag: first},
			&sigmap.Tflush{OldTag: first}, &sigmap.Tgetattr{Fid: 1}}
		if err := r.conn.Send(record(t, first, ms...), nil); err != nil {
			t.Fatal(err)
		}
		got, order, _ := r.recvAll(len(ms))
		if f, ok := got[first].(*sigmap.Rfail); !ok || sigma.Kind(f.Kind) != sigma.KindCanceled {
			t.Fatalf("got %+v, want canceled", got[first])
		}
		if at := slices.Index(order, first); at > slices.Index(order, first+1) || at > slices.Index(order, first+2) {
			t.Fatalf("a flush came before what it flushes: %v", order)
		}
	}
}

// TestSeveralUnread: a client that sends records full of requests and reads no answer does not make
// the server hold more than it lets wait, and gets them all in the end.
func TestSeveralUnread(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: recalling{}}).start(sigmap.VersionSeveral)
	const records, each = 200, 300
	var gets []sigmap.Message
	for range each {
		gets = append(gets, &sigmap.Tget{Fid: 1, Names: []string{"known"}, Count: 9})
	}
	sent, full := make(chan error), record(t, 1, gets...)
	go func() {
		for range records {
			if err := r.conn.Send(full, nil); err != nil {
				sent <- err
				return
			}
		}
		close(sent)
	}()
	for n := 0; n < records*each; {
		_, order, _ := r.recvAll(1)
		n += len(order)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestBadRecord: a record that is more or less than whole messages ends the session, as one of
// several does of who did not say that it sends such.
func TestBadRecord(t *testing.T) {
	one := encode(t, 9, &sigmap.Tgetattr{Fid: 1})
	_, other := dial(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)})
	for name, c := range map[string]struct {
		version string
		record  []byte
	}{
		"garbage after": {sigmap.VersionSeveral, append(one[:len(one):len(one)], "garbage"...)},
		"half after":    {sigmap.VersionSeveral, append(one[:len(one):len(one)], one[:len(one)/2]...)},
		"a byte after":  {sigmap.VersionSeveral, append(one[:len(one):len(one)], 0)},
		"size 0 after":  {sigmap.VersionSeveral, append(one[:len(one):len(one)], make([]byte, 7)...)},
		"size too large": {sigmap.VersionSeveral, append(one[:len(one):len(one)],
			resized(slices.Clone(one), 1<<31)...)},
		"same tag": {sigmap.VersionSeveral, slices.Concat(encode(t, 9, &sigmap.Twatch{Fid: 1, Since: 1 << 63}),
			one)},
		"not asked for": {sigmap.VersionSigma, slices.Concat(one, encode(t, 10, &sigmap.Tgetattr{Fid: 1}))},
	} {
		t.Run(name, func(t *testing.T) {
			tree := &counting{Tree: newMemfs(t)}
			r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(c.version)
			if err := r.conn.Send(c.record, nil); err != nil {
				t.Fatal(err)
			}
			r.waitEnd()
			if r.err == nil {
				t.Error("Serve returned nil")
			}
			tree.checkHandles(t)
			if _, err := other.Stat(t.Context()); err != nil {
				t.Errorf("another session: %v", err)
			}
		})
	}
}

// FuzzRecords feeds records of several messages to a server, after a proper beginning. Whatever
// they are, Serve returns once the client has closed, and all handles are closed.
func FuzzRecords(f *testing.F) {
	f.Add(record(f, 1, &sigmap.Tmkdir{Fid: 1, Name: "d"}, &sigmap.Twalk{Fid: 1, NewFid: 2, Names: []string{"d"}},
		&sigmap.Tclunk{Fid: 2}), uint16(30))
	f.Add(record(f, 1, &sigmap.Tput{Fid: 1, Names: []string{"f"}, Data: []byte("x")},
		&sigmap.Tget{Fid: 1, Names: []string{"f"}, Count: 9}, &sigmap.Twatch{Fid: 1, Since: 1 << 63},
		&sigmap.Tflush{OldTag: 3}), uint16(1000))
	f.Add([]byte{7, 0, 0, 0, 120, 1, 0, 7, 0, 0, 0}, uint16(11))
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		mem := memfs.New(memfs.Config{SizeMax: sigma.MiB})
		defer mem.Close()
		tree := &counting{Tree: mem}
		a, b, err := session.Pair()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			treeserver.Serve(context.Background(), b, treeserver.Config{Tree: tree})
		}()
		go func() {
			for {
				if _, _, err := a.Recv(); err != nil {
					return
				}
			}
		}()
		a.Send(encode(t, sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSeveral}), nil)
		a.Send(encode(t, 1, &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid}), nil)
		for at := 0; at+7 <= len(data); { // sizes are put right most of the time
			n := min(max(int(data[at]), 7), len(data)-at)
			if data[at]%16 != 15 {
				binary.LittleEndian.PutUint32(data[at:], uint32(n))
			}
			at += n
		}
		for each := int(size%1024) + 1; len(data) > 0; {
			n := min(each, len(data))
			if a.Send(data[:n], nil) != nil {
				break
			}
			data = data[n:]
		}
		a.Close()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("Serve does not return")
		}
		tree.checkHandles(t)
	})
}
