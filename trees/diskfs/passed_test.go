package diskfs

import (
	"os"
	"testing"

	"sigmaos.dev/sigma"
)

// hide makes a hidden file and gives its handle with a descriptor for writing.
func hide(t *testing.T, root sigma.File, name string) (sigma.File, *os.File, error) {
	t.Helper()
	f, err := root.Create(t.Context(), name, sigma.OpenWrite|sigma.OpenHidden, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	d, err := f.(sigma.FilePasser).PassFile(t.Context())
	if err == nil {
		t.Cleanup(func() { d.Close() })
	}
	return f, d, err
}

// Goal: a quota holds whatever is written by passed descriptors. Each costs as much as can be
// written by it, which is what it can make a file grow to under the limit that each proc has; the
// rest comes back when it is published or given up, but not as long as anybody holds a descriptor.
func TestQuotaOfPassed(t *testing.T) {
	const small = 1 << 20
	tree, err := New(Config{Dir: t.TempDir(), QuotaBytes: 2*sigma.WriteDescriptorMax + small})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	f1, d1, err := hide(t, root, "1")
	if err != nil {
		t.Fatal(err)
	}
	f2, d2, err := hide(t, root, "2")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := hide(t, root, "3"); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Fatalf("a third descriptor: %v", err)
	}
	// The test has no limit of its own, and may write sparsely: what counts is the size.
	if _, err := d1.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)-1); err != nil {
		t.Fatal(err)
	}
	if err := d1.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f1.(sigma.Publisher).Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := hide(t, root, "4"); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Fatalf("a descriptor beside a full file and another: %v", err)
	}
	f2.Close() // its descriptor is out: it can still be written
	if _, err := d2.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)-1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := hide(t, root, "5"); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Fatalf("a descriptor beside a full file and one that was given up and is being written: %v", err)
	}
	d2.Close()
	f6, d6, err := hide(t, root, "6")
	if err != nil {
		t.Fatalf("after the other was closed: %v", err)
	}
	// Somebody without the limit of procs writes more than is charged: it is not published.
	if err := d6.Truncate(int64(sigma.WriteDescriptorMax) + 2*small); err != nil {
		t.Fatal(err)
	}
	d6.Close()
	if err := f6.Sync(t.Context()); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("publishing more than the quota: %v", err)
	}
	f6.Close()
	if _, _, err := root.Walk(t.Context(), []string{"6"}); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("it is there: %v", err)
	}
	if sp := tree.spaces["r"]; sp.used > uint64(sigma.WriteDescriptorMax)+10*tree.entryCost {
		t.Errorf("%d bytes are charged at the end", sp.used)
	}
}
