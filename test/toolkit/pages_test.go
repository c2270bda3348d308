// Package toolkit tests the packages of lib as programs use them: their pages and examples, and
// that nothing is lost or done twice while workers, services and machines are killed.
package toolkit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Goal: each page of the toolkit shows what its example has, and each package has both.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/reference/toolkit/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		code, err := os.ReadFile("../../examples/toolkit/" + name + "/main.go")
		if err != nil {
			t.Errorf("%s has no example: %v", name, err)
			continue
		}
		if _, err := os.Stat("../../lib/" + name + "/doc.go"); err != nil {
			t.Errorf("%s has no doc.go: %v", name, err)
		}
		shown := 0
		for i, block := range strings.Split(string(text), "```") {
			piece, is := strings.CutPrefix(block, "go\n")
			if i%2 == 0 || !is {
				continue
			}
			shown++
			for _, part := range strings.Split(strings.TrimSpace(piece), "\n\n") {
				if !strings.Contains(string(code), part) {
					t.Errorf("examples/toolkit/%s has no\n%s", name, part)
				}
			}
		}
		if shown == 0 {
			t.Errorf("%s shows no code", page)
		}
	}
}
