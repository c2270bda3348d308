package sim

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "put what scripts print into their files")

// between separates a script from what it prints.
const between = "\n----\n"

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(text), between)
			var out strings.Builder
			if err := RunScript(strings.NewReader(script), &out); err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(script+between+out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out.String() != want {
				t.Errorf("it prints\n%s\nwanted\n%s", out.String(), want)
			}
		})
	}
}

// large are numbers that make a run long, and units of time that do.
var large = regexp.MustCompile(`[0-9]{2}|[0-9]h|[0-9]m[^s]|[eE][0-9+]`)

func FuzzRunScript(f *testing.F) {
	f.Add("fleet {\"name\":\"web\",\"program\":\"/bin/web\",\"least\":1,\"most\":4}\nload 2\nrun 1s\nkill 0\nroll\nrun 2s")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "run") > 3 || large.MatchString(text) {
			return // long runs of large fleets tell nothing more
		}
		var out strings.Builder
		RunScript(strings.NewReader(text), &out)
	})
}
