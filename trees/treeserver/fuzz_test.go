package treeserver_test

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// FuzzServe feeds bytes to a server of a tree in memory. Whatever they are, Serve returns once the
// client has closed, and all handles are closed.
func FuzzServe(f *testing.F) {
	script := func(ms ...sigmap.Message) []byte {
		var out []byte
		for i, m := range ms {
			out, _ = sigmap.Encode(out, uint16(i), m)
		}
		return out
	}
	hello := &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma}
	attach := &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid}
	f.Add(script(hello, attach, &sigmap.Tmkdir{Fid: 1, Name: "d"}, &sigmap.Twalk{Fid: 1, NewFid: 2,
		Names: []string{"d"}}, &sigmap.Tlopen{Fid: 2}, &sigmap.Tlist{Fid: 2, Max: 9},
		&sigmap.Treaddir{Fid: 2, Count: 500}, &sigmap.Tclunk{Fid: 2}))
	f.Add(script(hello, attach, &sigmap.Tput{Fid: 1, Names: []string{"f"}, Data: []byte("x")},
		&sigmap.Tget{Fid: 1, Names: []string{"f"}, Count: 9}, &sigmap.Twatch{Fid: 1, Since: 1 << 63},
		&sigmap.Tflush{OldTag: 4}, &sigmap.Tlease{Fid: 1, TTL: time.Second}, &sigmap.Tdescribe{Fid: 1}))
	f.Add(script(&sigmap.Tversion{Msize: 8192, Version: sigmap.VersionPlain}, attach,
		&sigmap.Tlcreate{Fid: 1, Name: "f", Flags: 2}, &sigmap.Twrite{Fid: 1, Data: []byte("x")},
		&sigmap.Tread{Fid: 1, Count: 9}, &sigmap.Tgetattr{Fid: 1}, &sigmap.Tsetattr{Fid: 1, Valid: 9},
		&sigmap.Tfsync{Fid: 1}, &sigmap.Tremove{Fid: 1}))
	f.Add(script(hello, attach, &sigmap.Tsymlink{Fid: 1, Name: "l", Target: "/"}, &sigmap.Twalk{Fid: 1, NewFid: 1},
		&sigmap.Trenameat{OldDir: 1, OldName: "l", NewDir: 1, NewName: "m"},
		&sigmap.Tunlinkat{Dir: 1, Name: "m"}, &sigmap.Tcall{Fid: 1}, &sigmap.Tpass{Fid: 1}, &sigmap.Tstatfs{Fid: 1},
		&sigmap.Treadlink{Fid: 1}))
	f.Add([]byte{0xff, 0xff, 0, 0, 100})
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := memfs.New(memfs.Config{SizeMax: sigma.MiB})
		defer mem.Close()
		tree := &counting{Tree: mem}
		a, b := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			treeserver.Serve(context.Background(), session.NewStreamConn(b), treeserver.Config{Tree: tree})
		}()
		go func() {
			buf := make([]byte, 1<<16)
			for {
				if _, err := a.Read(buf); err != nil {
					return
				}
			}
		}()
		for len(data) >= 4 { // sizes are put right most of the time, so that more than the first message is reached
			n := int(binary.LittleEndian.Uint32(data)) % 200
			n = min(max(n, 7), len(data))
			if data[0]%16 != 15 {
				binary.LittleEndian.PutUint32(data, uint32(n))
			}
			if _, err := a.Write(data[:n]); err != nil {
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
