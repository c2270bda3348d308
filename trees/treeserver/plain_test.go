package treeserver_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// plain is a 9P2000.L client that knows nothing of sigmaOS.
type plain struct {
	*testing.T
	root, dir p9.File
}

func (p *plain) ok(what string, err error) {
	p.Helper()
	if err != nil {
		p.Fatalf("%s: %v", what, err)
	}
}

func (p *plain) refused(what string, err, want error) {
	p.Helper()
	if !errors.Is(err, want) {
		p.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// TestInterop browses and changes a tree with a client of another project.
func TestInterop(t *testing.T) {
	tree := newMemfs(t)
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- treeserver.Serve(t.Context(), session.NewStreamConn(server), treeserver.Config{Tree: tree})
	}()
	defer func() {
		client.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	p := &plain{T: t}
	c, err := p9.NewClient(client)
	p.ok("NewClient", err)
	p.root, err = c.Attach("")
	p.ok("Attach", err)
	p.makeDir()
	p.listMany(1000)
	p.largeFile()
	p.names()

	// What the client did is what others see.
	own, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	p.ok("Attach", err)
	r, _, err := own.(sigma.Getter).Get(t.Context(), []string{"dir", "file-0999"}, 0, 10)
	if err != nil || r.Size != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func (p *plain) makeDir() {
	qid, err := p.root.Mkdir("dir", 0o755, 0, 0)
	p.ok("Mkdir", err)
	_, err = p.root.Mkdir("dir", 0o755, 0, 0)
	p.refused("Mkdir again", err, linux.EEXIST)
	qids, dir, err := p.root.Walk([]string{"dir"})
	p.ok("Walk", err)
	if len(qids) != 1 || qids[0].Type != p9.TypeDir || qids[0].Path != qid.Path {
		p.Errorf("walked to %v, made %v", qids, qid)
	}
	_, _, err = p.root.Walk([]string{"nothing"})
	p.refused("Walk", err, linux.ENOENT)
	p.dir = dir
}

// create makes a file in dir and opens it.
func (p *plain) create(name string, flags p9.OpenFlags) p9.File {
	p.Helper()
	_, f, err := p.dir.Walk(nil)
	p.ok("clone", err)
	_, _, _, err = f.Create(name, flags, 0o644, 0, 0)
	p.ok("Create", err)
	return f
}

// listMany lists many files with replies of several sizes, going on in the middle of them.
func (p *plain) listMany(n int) {
	for i := range n {
		p.ok("Close", p.create(fmt.Sprintf("file-%04d", i), p9.WriteOnly).Close())
	}
	for _, count := range []uint32{200, 4096, 1 << 20} {
		_, d, err := p.root.Walk([]string{"dir"})
		p.ok("Walk", err)
		_, _, err = d.Open(p9.ReadOnly)
		p.ok("Open", err)
		seen := map[string]bool{}
		for offset := uint64(0); ; {
			es, err := d.Readdir(offset, count)
			p.ok("Readdir", err)
			if len(es) == 0 {
				break
			}
			for _, e := range es[:(len(es)+1)/2] {
				if seen[e.Name] {
					p.Fatalf("%s is listed twice", e.Name)
				}
				seen[e.Name], offset = true, e.Offset
			}
		}
		if len(seen) != n {
			p.Errorf("listed %d of %d files with replies of %d bytes", len(seen), n, count)
		}
		p.ok("Close", d.Close())
	}
}

// largeFile writes and reads a file in pieces and changes its attributes.
func (p *plain) largeFile() {
	f := p.create("large", p9.ReadWrite)
	data := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	for off := 0; off < len(data); {
		n, err := f.WriteAt(data[off:], int64(off))
		p.ok("WriteAt", err)
		off += n
	}
	p.ok("FSync", f.FSync())
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	p.ok("ReadAt", err)
	if !bytes.Equal(got, data) {
		p.Errorf("read %d bytes, wrote %d", len(got), len(data))
	}
	p.ok("SetAttr", f.SetAttr(p9.SetAttrMask{Size: true, Permissions: true}, p9.SetAttr{Size: 5, Permissions: 0o600}))
	_, _, attr, err := f.GetAttr(p9.AttrMaskAll)
	p.ok("GetAttr", err)
	if attr.Size != 5 || attr.Mode.Permissions() != 0o600 || !attr.Mode.IsRegular() || attr.MTimeSeconds == 0 {
		p.Errorf("attributes %+v", attr)
	}
}

// names renames, links and removes.
func (p *plain) names() {
	p.ok("RenameAt", p.dir.RenameAt("large", p.root, "moved"))
	_, err := p.root.Symlink("/moved", "link", 0, 0)
	p.ok("Symlink", err)
	qids, link, err := p.root.Walk([]string{"link"})
	p.ok("Walk", err)
	if qids[0].Type != p9.TypeSymlink {
		p.Errorf("a symlink has type %v", qids[0].Type)
	}
	target, err := link.Readlink()
	if err != nil || target != "/moved" {
		p.Errorf("Readlink: %q, %v", target, err)
	}
	p.refused("UnlinkAt of a full directory", p.root.UnlinkAt("dir", 0x200), linux.ENOTEMPTY)
	p.ok("UnlinkAt", p.root.UnlinkAt("moved", 0))
	_, err = p.root.StatFS()
	p.ok("StatFS", err)
}
