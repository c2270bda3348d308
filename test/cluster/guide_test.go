//go:build system

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
)

// blocks gives the fenced sh blocks of one section of a Markdown file.
func blocks(t *testing.T, file, section string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", file, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for {
		_, after, ok := strings.Cut(rest, "\n```sh\n")
		if !ok {
			return out
		}
		block, after, _ := strings.Cut(after, "```")
		out, rest = append(out, block), after
	}
}

// allWorked says whether each of three machines did some of a count.
func allWorked(said string) bool {
	for i := range 3 {
		if !regexp.MustCompile(fmt.Sprintf(`machine m%d: [1-9]\d* maps? `, i+1)).MatchString(said) {
			return false
		}
	}
	return true
}

// Goal: who follows the guide from its beginning gets what it promises: three machines, a word
// count in which each of them did some, a file on another machine, a drained machine, and nothing
// left.
func TestGuide(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3, Unstarted: true})
	dir := t.TempDir()
	must(t, os.Symlink(c.Bin(), filepath.Join(dir, "bin")))
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	var said strings.Builder
	took := time.Duration(0)
	for i, block := range blocks(t, "../../docs/guide/cluster.md", "Three machines on one host") {
		cmd := exec.CommandContext(ctx, "bash", "-euc",
			"make() { :; }\nsudo() { \"$@\"; }\n"+block) // they are built, and this is root
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "SIGMA_DATA="+c.Data())
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		err := cmd.Run()
		took += time.Since(began)
		t.Logf("%s\n%s", block, out.String())
		if err != nil {
			t.Fatalf("block %d: %v", i+1, err)
		}
		said.WriteString(out.String())
		switch {
		case i == 0:
			c.Started(t)
		case strings.Contains(block,
			"mr wordcount"): // on a busy host a machine may be so late that the others have done all
			for again := 1; again < 5 && !allWorked(said.String()); again++ {
				said.WriteString(c.Machine(0).Must(t, "mr", "wordcount", "--input", "/s3/in/texts", "--output",
					fmt.Sprint("/s3/in/again", again), "--maps", "9"))
			}
		}
	}
	for _, want := range []string{`(?m)^m1\*\s+alive\s+yes`, `(?m)^m2\s+alive\s+no`, `(?m)^m3\s+alive\s+no`,
		`counted \d{6,} words`,
		`(?m)^kept on m2$`, `(?m)^names.snap: \d+ keys`, `(?m)^m3\s+alive,(cordoned,)?draining`,
		`is stopped \(3 machines\)`} {
		if !regexp.MustCompile(want).MatchString(said.String()) {
			t.Errorf("nothing that the commands print is %s", want)
		}
	}
	if !allWorked(said.String()) {
		t.Error("not all machines took part in a count")
	}
	var counted float64
	if at := regexp.MustCompile(`in (\d+\.\d+) s:`).FindStringSubmatch(said.String()); at != nil {
		fmt.Sscan(at[1], &counted)
	}
	t.Logf("all took %.1f s, the count %.1f s of it", took.Seconds(), counted)
}
