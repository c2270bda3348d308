package treekit_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// TestInterop browses and changes a tree with a 9P2000.L client that knows nothing of sigmaOS.
func TestInterop(t *testing.T) {
	tree := newMemfs(t)
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- treekit.Serve(t.Context(), session.NewStreamConn(server), treekit.Config{Tree: tree})
	}()
	defer func() {
		client.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	c, err := p9.NewClient(client)
	if err != nil {
		t.Fatal(err)
	}
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	refused := func(what string, err error, want linux.Errno) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	root, err := c.Attach("")
	ok("Attach", err)
	qid, err := root.Mkdir("dir", 0o755, 0, 0)
	ok("Mkdir", err)
	_, err = root.Mkdir("dir", 0o755, 0, 0)
	refused("Mkdir again", err, linux.EEXIST)

	qids, dir, err := root.Walk([]string{"dir"})
	ok("Walk", err)
	if len(qids) != 1 || qids[0].Type != p9.TypeDir || qids[0].Path != qid.Path {
		t.Errorf("walked to %v, made %v", qids, qid)
	}
	_, _, err = root.Walk([]string{"nothing"})
	refused("Walk", err, linux.ENOENT)

	// Many files, listed in small replies.
	const n = 1000
	for i := range n {
		_, f, err := dir.Walk(nil)
		ok("clone", err)
		_, _, _, err = f.Create(fmt.Sprintf("file-%04d", i), p9.WriteOnly, 0o644, 0, 0)
		ok("Create", err)
		ok("Close", f.Close())
	}
	for _, count := range []uint32{200, 4096, 1 << 20} {
		_, d, err := root.Walk([]string{"dir"})
		ok("Walk", err)
		_, _, err = d.Open(p9.ReadOnly)
		ok("Open", err)
		seen := map[string]bool{}
		for offset := uint64(0); ; {
			es, err := d.Readdir(offset, count)
			ok("Readdir", err)
			if len(es) == 0 {
				break
			}
			for _, e := range es[:(len(es)+1)/2] { // a client that goes on in the middle of a reply
				if seen[e.Name] {
					t.Fatalf("%s is listed twice", e.Name)
				}
				seen[e.Name], offset = true, e.Offset
			}
		}
		if len(seen) != n {
			t.Errorf("listed %d of %d files with replies of %d bytes", len(seen), n, count)
		}
		ok("Close", d.Close())
	}

	// A large file, written and read in pieces.
	_, f, err := dir.Walk(nil)
	ok("clone", err)
	_, _, _, err = f.Create("large", p9.ReadWrite, 0o640, 0, 0)
	ok("Create", err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	for off := 0; off < len(data); {
		n, err := f.WriteAt(data[off:], int64(off))
		ok("WriteAt", err)
		off += n
	}
	ok("FSync", f.FSync())
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	ok("ReadAt", err)
	if !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, wrote %d", len(got), len(data))
	}
	size := uint64(5)
	ok("SetAttr", f.SetAttr(p9.SetAttrMask{Size: true, Permissions: true}, p9.SetAttr{Size: size, Permissions: 0o600}))
	_, _, attr, err := f.GetAttr(p9.AttrMaskAll)
	ok("GetAttr", err)
	if attr.Size != size || attr.Mode.Permissions() != 0o600 || !attr.Mode.IsRegular() || attr.MTimeSeconds == 0 {
		t.Errorf("attributes %+v", attr)
	}

	// Names.
	ok("RenameAt", dir.RenameAt("large", root, "moved"))
	_, err = root.Symlink("/moved", "link", 0, 0)
	ok("Symlink", err)
	qids, link, err := root.Walk([]string{"link"})
	ok("Walk", err)
	if qids[0].Type != p9.TypeSymlink {
		t.Errorf("a symlink has type %v", qids[0].Type)
	}
	target, err := link.Readlink()
	if err != nil || target != "/moved" {
		t.Errorf("Readlink: %q, %v", target, err)
	}
	refused("UnlinkAt of a full directory", root.UnlinkAt("dir", 0x200), linux.ENOTEMPTY)
	ok("UnlinkAt", root.UnlinkAt("moved", 0))
	_, err = root.StatFS()
	ok("StatFS", err)

	// What the client did is what others see.
	own, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	ok("Attach", err)
	r, _, err := own.(sigma.Getter).Get(t.Context(), []string{"dir", "file-0999"}, 0, 10)
	if err != nil || r.Size != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}
