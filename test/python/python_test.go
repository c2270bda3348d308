// Package python tests the Python SDK (sdk/python): its unit tests here, and all of it against a
// running system with the build tag system.
package python

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// interpreter is that of Debian's package python3, which scripts/setup installs.
const interpreter = "python3"

var ran = regexp.MustCompile(`(?m)^Ran (\d+) tests? in .*\n\nOK$`)

// Goal: the unit tests of the SDK pass, and none is skipped.
func TestUnits(t *testing.T) {
	cmd := exec.Command(interpreter, "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
	cmd.Dir = "../../sdk/python"
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !ran.Match(out) || ran.FindSubmatch(out)[1][0] == '0' {
		t.Fatalf("%v\n%s", err, out)
	}
}

// blocks gives the Python code of a page.
func blocks(t *testing.T, page string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```") {
		if code, is := strings.CutPrefix(block, "python\n"); is && i%2 == 1 {
			out = append(out, code)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s shows no code", page)
	}
	return out
}
