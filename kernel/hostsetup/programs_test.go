package hostsetup

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Documents that list the programs of a machine name each of them.
func TestProgramsInDocuments(t *testing.T) {
	for _, d := range []struct{ file, form string }{
		{"ARCHITECTURE.md", "%s"},
		{"docs/internals/launcher-protocol.md", "--program %s=PATH"},
		{"docs/reference/isolation.md", "%s"},
		{"docs/reference/commands/up.md", "`%s/`"},
		{"docs/reference/commands/up.md", "`%s`"},
	} {
		text, err := os.ReadFile("../../" + d.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range BootSet() {
			if want := fmt.Sprintf(d.form, name); !strings.Contains(string(text), want) {
				t.Errorf("%s lacks %s", d.file, want)
			}
		}
	}
}
