//go:build system

package cluster

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// texts makes files of random words and tells how many words they have.
func texts(t *testing.T, dir string, files, size int) (words int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range files {
		var b bytes.Buffer
		for b.Len() < size {
			fmt.Fprintf(&b, "w%c%c ", 'a'+rng.IntN(26), 'a'+rng.IntN(26))
			words++
		}
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("text%02d", i)), b.Bytes(), 0o644))
	}
	return words
}

// Goal: a file of one machine is as good at another, whatever its size; procs read and write it
// there too. When its machine is lost whoever waits is told which, within 3 s, and it is there when
// the machine is.
func TestFiles(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	m1, m2, m3 := c.Machine(0), c.Machine(1), c.Machine(2)
	t.Run("tree", func(t *testing.T) { treeConforms(t, c) })
	dir := t.TempDir()
	large := make([]byte, 20<<20+7)
	rand.NewChaCha8([32]byte{1}).Read(large)
	must(t, os.WriteFile(filepath.Join(dir, "large"), large, 0o644))
	m1.Must(t, "put", filepath.Join(dir, "large"), "/ux/m2/large")
	m3.Must(t, "get", "/ux/m2/large", filepath.Join(dir, "back"))
	if got, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("a large file is another at a third machine: %d bytes, %v", len(got), err)
	}
	must(t, os.Mkdir(filepath.Join(dir, "texts"), 0o755))
	words := texts(t, filepath.Join(dir, "texts"), 12, 200<<10)
	m1.Must(t, "put", "-r", filepath.Join(dir, "texts"), "/ux/m2/texts")
	out := m3.Must(t, "mr", "wordcount", "--input", "/ux/m2/texts", "--output", "/ux/~local/counts", "--maps", "6",
		"--reduces", "2")
	if !strings.Contains(out, fmt.Sprintf("counted %d words", words)) {
		t.Errorf("want %d words:\n%s", words, out)
	}
	if out := m1.Must(t, "ls", "/ux/m3/counts"); !strings.Contains(out, "part-00001") {
		t.Errorf("the output is not on m3: %s", out)
	}
	client, err := m1.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	st, err := client.Stat(ctx, "/ux/m2/large")
	must(t, err)
	waits := make(chan error, 1)
	go func() {
		_, err := client.Watch(ctx, "/ux/m2/large", st.ID.Version)
		waits <- err
	}()
	_, err = client.Stat(ctx, "/ux/m2/large") // so that the session is there
	must(t, err)
	began := time.Now()
	must(t, m2.PowerOff())
	err = <-waits
	took := time.Since(began)
	if kind := sigma.KindOf(err); err == nil || kind != sigma.KindLost && kind != sigma.KindUnavailable ||
		!strings.Contains(err.Error(), "m2") {
		t.Errorf("who waited for the machine got %v", err)
	}
	t.Logf("answered after %v: %v", took, err)
	if _, err = client.Stat(ctx, "/ux/m2/large"); err == nil || sigma.KindOf(err) != sigma.KindUnavailable &&
		sigma.KindOf(err) != sigma.KindLost || !strings.Contains(err.Error(), "m2") {
		t.Errorf("who came later got %v", err)
	}
	must(t, m2.Restart())
	testenv.Eventually(t, "the file is there again", func() error {
		again, err := client.Stat(ctx, "/ux/m2/large")
		if err == nil && again.Size != st.Size {
			err = fmt.Errorf("it has %d bytes, not %d", again.Size, st.Size)
		}
		return err
	})
}

// Goal: a word count is right although one of its machines dies while it works.
func TestCountLosesMachine(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	m1, m3 := c.Machine(0), c.Machine(2)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "texts"), 0o755))
	words := texts(t, filepath.Join(dir, "texts"), 12, 1<<20)
	m1.Must(t, "mkdir", "/s3/in")
	m1.Must(t, "put", "-r", filepath.Join(dir, "texts"), "/s3/in/texts")
	client, err := m1.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	program := m1.Install(ctx, t, client, filepath.Join(c.Bin(), "mr"))
	type result struct {
		s   mr.Summary
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := (&mr.Client{Names: client, Procs: client, Init: client}).Run(ctx, "count",
			mr.Job{Input: "/s3/in/texts", Output: "/s3/in/counts", Maps: 12, Reduces: 2, Cores: 2, Program: program})
		done <- result{s, err}
	}()
	must(t, client.WaitFor(ctx, "/mr/count/out/m-00000")) // it is under way
	must(t, m3.PowerOff())
	r := <-done
	must(t, r.err)
	t.Logf("%+v", r.s)
	if r.s.Records != int64(words) {
		t.Errorf("counted %d words, want %d", r.s.Records, words)
	}
	must(t, m3.Restart())
}
