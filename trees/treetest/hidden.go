package treetest

import (
	"os"

	"sigmaos.dev/sigma"
)

var hiddenTests = []subtest{
	{name: "hidden", needs: []Capability{Hidden}, run: testHidden},
	{name: "hidden-exclusive", needs: []Capability{Hidden}, run: testHiddenExclusive},
	{name: "hidden-descriptor", needs: []Capability{Hidden, PassFiles}, run: testHiddenDescriptor},
}

// hide makes a hidden file.
func (e *env) hide(name string, flags sigma.OpenFlags) sigma.File {
	f, err := e.dir.Create(e.ctx, name, flags|sigma.OpenHidden, 0o666)
	e.ok("Create of a hidden file", err)
	e.Cleanup(f.Close)
	return f
}

func (e *env) publish(f sigma.File) error { return f.(sigma.Publisher).Publish(e.ctx) }

// Nobody sees a hidden file, or the change of the one whose place it takes, before all of it; and
// never one that was given up.
func testHidden(e *env) {
	want := pattern(9000)
	f := e.hide("f", sigma.OpenReadWrite)
	_, err := f.WriteAt(e.ctx, []byte(want), 0)
	e.ok("WriteAt", err)
	e.missing(e.dir, "f")
	e.wantNames(e.dir)
	e.wantData("by the handle", e.readOpen(f), want)
	e.ok("Publish", e.publish(f))
	e.wantData("published", e.read(e.dir, "f"), want)
	e.wantNames(e.dir, "f")

	again := e.hide("f", sigma.OpenWrite)
	_, err = again.WriteAt(e.ctx, []byte("new"), 0)
	e.ok("WriteAt", err)
	e.wantData("before it is replaced", e.read(e.dir, "f"), want)
	e.ok("Sync", again.Sync(e.ctx))
	e.wantData("replaced", e.read(e.dir, "f"), "new")

	gone := e.hide("g", sigma.OpenWrite)
	_, err = gone.WriteAt(e.ctx, []byte("half"), 0)
	e.ok("WriteAt", err)
	gone.Close()
	e.wantNames(e.dir, "f")
	e.mkdir(e.dir, "d")
	_, err = e.dir.Create(e.ctx, "d", sigma.OpenWrite|sigma.OpenHidden, 0o666)
	e.fails("Create of a hidden file with a directory's name", err, sigma.KindIsDir)
}

// Of several that want one new name the first that is published has it.
func testHiddenExclusive(e *env) {
	a, b := e.hide("f", sigma.OpenWrite|sigma.OpenExclusive), e.hide("f", sigma.OpenWrite|sigma.OpenExclusive)
	for f, text := range map[sigma.File]string{a: "a", b: "b"} {
		_, err := f.WriteAt(e.ctx, []byte(text), 0)
		e.ok("WriteAt", err)
	}
	e.ok("Publish of the first", e.publish(b))
	e.fails("Publish of the second", e.publish(a), sigma.KindExists)
	e.wantData("content", e.read(e.dir, "f"), "b")
	_, err := e.dir.Create(e.ctx, "f", sigma.OpenWrite|sigma.OpenHidden|sigma.OpenExclusive, 0o666)
	e.fails("Create of a name that is taken", err, sigma.KindExists)
}

// A descriptor for writing is passed of a file that nobody sees. Bytes that others see do not
// change by one, whatever its owner does: until it is closed there is no publishing.
func testHiddenDescriptor(e *env) {
	f := e.hide("f", sigma.OpenReadWrite)
	_, err := f.WriteAt(e.ctx, []byte("begun "), 0)
	e.ok("WriteAt", err)
	passed, err := f.(sigma.FilePasser).PassFile(e.ctx)
	e.ok("PassFile", err)
	defer passed.Close()
	if st, err := passed.Stat(); err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 {
		e.Errorf("the passed file is %v, %v", st, err)
	}
	_, err = passed.WriteAt([]byte("directly"), 6)
	e.ok("writing by the descriptor", err)
	if st := e.stat(f); st.Size != 14 {
		e.Errorf("the file has %d bytes, want 14", st.Size)
	}
	e.fails("Sync while the descriptor is open", f.Sync(e.ctx), sigma.KindBusy)
	_, err = f.WriteAt(e.ctx, []byte("x"), 0)
	e.fails("WriteAt while the descriptor is open", err, sigma.KindBusy)
	e.missing(e.dir, "f")
	passed.Close()
	_, err = f.WriteAt(e.ctx, []byte(", then not"), 14)
	e.ok("WriteAt once it is closed", err)
	e.ok("Sync", f.Sync(e.ctx))
	e.wantData("published", e.read(e.dir, "f"), "begun directly, then not")
	_, err = f.(sigma.FilePasser).PassFile(e.ctx)
	e.fails("PassFile of what others see", err, sigma.KindPermission, sigma.KindUnsupported)

	w := e.hide("w", sigma.OpenWrite)
	only, err := w.(sigma.FilePasser).PassFile(e.ctx)
	e.ok("PassFile of a handle for writing", err)
	defer only.Close()
	if _, err := only.Read(make([]byte, 1)); !os.IsPermission(err) && err == nil {
		e.Error("a descriptor for writing can be read")
	}
	w.Close()
	e.wantNames(e.dir, "f")
}
