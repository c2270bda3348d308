//go:build system

package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
)

// sources is a tree to copy: that of Go's library, or a part of it unless SIGMA_TEST_MOUNT=full.
func sources(t *testing.T) string {
	src := filepath.Join(strings.TrimSpace(testenv.Output(t, "go", "env", "GOROOT")), "src")
	if os.Getenv("SIGMA_TEST_MOUNT") == "full" {
		return src
	}
	return filepath.Join(src, "net") // 700 files, and a large one
}

// Goal: the programs that people keep their work with do so on a mount.
func TestPrograms(t *testing.T) {
	need(t, "cp", "diff", "git", "sqlite3", "rsync")
	_, work := mounted(t, shared.Get(t))
	src, tree := sources(t), filepath.Join(work, "src")
	step := func(what string, do func()) {
		start := time.Now()
		do()
		t.Logf("%s: %.1f s", what, time.Since(start).Seconds())
	}
	step("cp -a", func() { run(t, work, "cp", "-a", src, tree) })
	step("diff -r", func() { run(t, work, "diff", "-r", src, tree) })
	step("rsync", func() {
		back := filepath.Join(t.TempDir(), "back")
		run(t, work, "rsync", "-a", tree+"/", back)
		if out := run(t, work, "rsync", "-a", "-n", "-i", "--checksum", src+"/", back); out != "" {
			t.Errorf("what came back differs: %.500s", out)
		}
	})
	step("git", func() {
		run(t, tree, "git", "init", "-q")
		run(t, tree, "git", "config", "gc.auto", "0")
		run(t, tree, "git", "add", ".")
		run(t, tree, "git", "commit", "-qm", "all")
		run(t, tree, "git", "fsck", "--strict")
		if out := run(t, tree, "git", "status", "--porcelain"); out != "" {
			t.Errorf("git sees changes: %.500s", out)
		}
	})
}

// A database on a mount keeps what was committed, in each of the ways that SQLite keeps a journal:
// by files that come and go, by truncation, and in shared memory.
func TestSQLite(t *testing.T) {
	need(t, "sqlite3")
	_, work := mounted(t, shared.Get(t))
	for _, mode := range []string{"delete", "truncate", "wal"} {
		db := filepath.Join(work, mode+".db")
		if got := run(t, work, "sqlite3", db,
			"pragma journal_mode="+mode+
				"; create table t(a integer primary key, b text);"); strings.TrimSpace(got) != mode {
			t.Errorf("journal mode %q, want %s", got, mode)
		}
		row := "insert into t(b) select hex(randomblob(500)) from t t1 union all select 'x';"
		run(t, work, "sqlite3", db, "begin;"+strings.Repeat(row, 8)+"commit; begin;"+row+"rollback;")
		if got := run(t, work, "sqlite3", db, "select count(*) from t; pragma integrity_check;"); got != "255\nok\n" {
			t.Errorf("%s: %q", mode, got)
		}
	}
}
